// Repairs the rows of requests without keys (out = 0 and lse = -inf) in one launch for any batch.
//
// Out is cut into pieces: several whole tokens, or part of one token that has many bytes. Each warp finds the requests
// of a piece's tokens by itself, so that warps exchange nothing. Zero has the same bits in every element type, so out
// is treated as bytes.
//
// With few requests, one may own most of the rows to clear, or none. All blocks then run at once and take the pieces in
// turns: each gets its share of an empty request wherever it is, and skips requests with keys. With many requests, each
// block has one piece: skipping takes longer than launching blocks that do nothing.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace attnfuzz {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kEnd = std::numeric_limits<int>::max();

constexpr int kFewRequests = 128;
constexpr int kBlocksPerSM = 8;

// Small pieces spread a short output over all SMs; large ones save thousands of blocks for a large output of many
// requests.
constexpr int64_t kSmallestPiece = 32 << 10;
constexpr int64_t kLargestPiece = 512 << 10;
constexpr int64_t kEnoughPieces = 4096;
constexpr int64_t kMostTokens = 1024;  // of a piece

// From this size on, a whole block clears one run at a time.
constexpr int64_t kLongRun = 2 << 10;

struct Integers {
  const int32_t* data;
  int64_t stride;

  __device__ int at(int index) const { return data[index * stride]; }
};

struct Requests {
  Integers kv_lens, starts;
  int batch, max_seq_len;
};

// Tokens before `last` that are all cleared, or all kept.
struct Stretch {
  int last;
  bool empty;
};

// 32 consecutive requests, one per lane of a warp: their first tokens and numbers of keys.
class Window {
 public:
  __device__ Window(const Requests& requests, int token) : requests_(requests), lane_(threadIdx.x % kLanes) {
    seek(token);
  }

  // The stretch from `token` on. Tokens of no request are left alone.
  __device__ Stretch at(int token) {
    int position = last_begun(start_ <= token);
    if (position == kLanes - 1) {
      // Usually it is among the next ones.
      load(first_ + kLanes - 1);
      position = last_begun(start_ <= token);
    }
    if (position == kLanes - 1) {
      seek(token);
      position = last_begun(start_ <= token);
    }
    const int first = __shfl_sync(kAllLanes, start_, position);
    const int keys = __shfl_sync(kAllLanes, keys_, position);
    // Starts that do not ascend must not stop the caller's progress.
    if (position < 0 || keys != 0 || token - first >= requests_.max_seq_len) {
      // The next request without keys, or the last one of the window.
      const unsigned after = position < 0 ? kAllLanes : ~1u << position;
      const unsigned later = __ballot_sync(kAllLanes, keys_ == 0 || lane_ == kLanes - 1) & after;
      return {max(__shfl_sync(kAllLanes, start_, __ffs(later) - 1), token + 1), false};
    }
    const int next = __shfl_sync(kAllLanes, start_, position + 1);
    return {max(next - first > requests_.max_seq_len ? first + requests_.max_seq_len : next, token + 1), true};
  }

 private:
  // The last lane whose request has begun, -1 if none has.
  __device__ static int last_begun(bool begun) { return __popc(__ballot_sync(kAllLanes, begun)) - 1; }

  // Moves the window to the request of `token`: the 32 lanes divide the rest into 32 parts until it fits.
  __device__ void seek(int token) {
    int first = 0, count = requests_.batch + 1;
    while (count >= kLanes) {
      const int step = (count + kLanes - 1) / kLanes;
      const int probe = first + lane_ * step;
      const bool begun = probe < first + count && requests_.starts.at(probe) <= token;
      const int part = max(last_begun(begun), 0);
      first += part * step;
      count = min(step, count - part * step);
    }
    load(first);
  }

  __device__ void load(int first) {
    first_ = first;
    const int request = first + lane_;
    start_ = request <= requests_.batch ? requests_.starts.at(request) : kEnd;
    keys_ = request < requests_.batch ? requests_.kv_lens.at(request) : kEnd;
  }

  const Requests& requests_;
  const int lane_;
  int first_, start_, keys_;
};

// Clears the share of thread `rank` of `threads` in `count` bytes. Both ends are multiples of 2.
__device__ void clear_bytes(char* at, int64_t count, int rank, int threads) {
  const int64_t head = min(count, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(at) & 15));
  const int64_t tail = head + ((count - head) & ~int64_t{15});
  for (int64_t i = 2 * rank; i < head; i += 2 * threads) *reinterpret_cast<uint16_t*>(at + i) = 0;
#pragma unroll 4
  for (int64_t i = head + 16 * rank; i < tail; i += 16 * threads) {
    *reinterpret_cast<uint4*>(at + i) = make_uint4(0, 0, 0, 0);
  }
  for (int64_t i = tail + 2 * rank; i < count; i += 2 * threads) *reinterpret_cast<uint16_t*>(at + i) = 0;
}

// The cut of the output: a piece has `tokens` tokens, or is one of the `pieces` of a token.
struct Cut {
  unsigned pieces;
  int tokens;
};

// An output with one run of bytes per token.
struct Dense {
  char* data;
  int64_t token_stride, token_bytes, piece_bytes;

  __device__ void clear(int first, int last, unsigned piece) const {
    const int64_t begin = piece * piece_bytes;
    if (token_stride == token_bytes && token_bytes <= piece_bytes) {
      clear_bytes(data + first * token_stride, (last - first) * token_bytes, threadIdx.x, kThreads);
      return;
    }
    for (int token = first; token < last; ++token) {
      clear_bytes(data + token * token_stride + begin, min(piece_bytes, token_bytes - begin), threadIdx.x, kThreads);
    }
  }
};

// An output with outer x inner short runs per token. A team of threads clears one run at a time.
struct Scattered {
  char* data;
  int64_t token_stride, outer_stride, inner_stride, run_bytes;
  unsigned runs, inner, piece_runs;
  int team;

  __device__ void clear(int first, int last, unsigned piece) const {
    const unsigned begin = piece * piece_runs, count = min(piece_runs, runs - begin);
    const unsigned all = (last - first) * count;
    for (unsigned i = threadIdx.x / team; i < all; i += kThreads / team) {
      const unsigned token = i / count, run = begin + i - token * count, outer = run / inner;
      char* at = data + (first + token) * token_stride + outer * outer_stride + (run - outer * inner) * inner_stride;
      clear_bytes(at, run_bytes, threadIdx.x % team, team);
    }
  }
};

struct Statistics {
  float* data;
  int64_t token_stride, head_stride;
  unsigned heads;

  __device__ void clear(int first, int last) const {
    for (unsigned i = threadIdx.x; i < (last - first) * heads; i += kThreads) {
      const unsigned token = i / heads;
      data[(first + token) * token_stride + (i - token * heads) * head_stride] = -INFINITY;
    }
  }
};

// Clears the empty tokens from `token` up to `end`. Returns their last stretch.
template <typename Out>
__device__ Stretch repair_piece(Window& window, const Out& out, const Statistics& lse, int token, int end,
                                unsigned piece) {
  Stretch stretch{};
  while (token < end) {
    stretch = window.at(token);
    const int last = min(stretch.last, end);
    if (stretch.empty) {
      out.clear(token, last, piece);
      if (piece == 0) lse.clear(token, last);
    }
    token = last;
  }
  return stretch;
}

// A block for each piece.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    repair(const Requests requests, const Out out, const Statistics lse, const Cut cut, const int tokens) {
  const unsigned group = blockIdx.x / cut.pieces, piece = blockIdx.x - group * cut.pieces;
  const int token = group * cut.tokens;
  Window window(requests, token);
  repair_piece(window, out, lse, token, token + min(cut.tokens, tokens - token), piece);
}

// Every block takes each gridDim.x-th piece, except those that it can skip.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    repair_in_turns(const Requests requests, const Out out, const Statistics lse, const Cut cut, const int tokens) {
  int64_t turn = blockIdx.x;
  Window window(requests, static_cast<int>(turn / cut.pieces) * cut.tokens);
  while (true) {
    const int64_t group = turn / cut.pieces;
    if (group * cut.tokens >= tokens) return;
    const int token = static_cast<int>(group) * cut.tokens;
    const int end = token + min(cut.tokens, tokens - token);
    const auto piece = static_cast<unsigned>(turn - group * cut.pieces);
    const Stretch stretch = repair_piece(window, out, lse, token, end, piece);
    turn += gridDim.x;
    if (!stretch.empty) {
      const int64_t next = static_cast<int64_t>(stretch.last / cut.tokens) * cut.pieces;
      if (next > turn) turn += (next - turn + gridDim.x - 1) / gridDim.x * gridDim.x;
    }
  }
}

using tvm::ffi::TensorView;

#define REQUIRE(condition, message) \
  if (!(condition)) TVM_FFI_THROW(ValueError) << message

char* data_of(const TensorView& tensor) { return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(); }

bool is(const TensorView& tensor, int code, int bits) {
  return tensor.dtype().code == code && tensor.dtype().bits == bits && tensor.dtype().lanes == 1;
}

void require_axes(const TensorView& tensor, const char* name, int axes, const TensorView& out) {
  REQUIRE(tensor.device().device_type == kDLCUDA, name << " must be on a GPU");
  REQUIRE(tensor.device().device_id == out.device().device_id, name << " must be on the GPU of out");
  REQUIRE(tensor.ndim() == axes, name << " must have " << axes << " axes, not " << tensor.ndim());
}

Integers integers_of(const TensorView& tensor, const char* name, const TensorView& out) {
  require_axes(tensor, name, 1, out);
  REQUIRE(is(tensor, kDLInt, 32), name << " must be int32");
  return {reinterpret_cast<const int32_t*>(data_of(tensor)), tensor.stride(0)};
}

Requests requests_of(const TensorView& kv_lens, const TensorView& cum_seq_lens, int64_t max_seq_len,
                     const TensorView& out) {
  const Integers lengths = integers_of(kv_lens, "kv_lens", out), starts = integers_of(cum_seq_lens, "cum_seq_lens", out);
  const int64_t batch = kv_lens.size(0);
  REQUIRE(batch < (1 << 30), "kv_lens must have less than " << (1 << 30) << " entries, not " << batch);
  REQUIRE(cum_seq_lens.size(0) == batch + 1, "cum_seq_lens must have " << batch + 1
                                                 << " entries (one more than kv_lens), not " << cum_seq_lens.size(0));
  REQUIRE(max_seq_len >= 0, "max_seq_len must be 0 or more, not " << max_seq_len);
  return {lengths, starts, static_cast<int>(batch), static_cast<int>(std::min<int64_t>(max_seq_len, kEnd))};
}

Statistics statistics_of(const TensorView& lse, const TensorView& out) {
  require_axes(lse, "lse", 2, out);
  REQUIRE(is(lse, kDLFloat, 32), "lse must be float32");
  REQUIRE(lse.size(0) == out.size(0) && lse.size(1) == out.size(1),
          "lse must have shape [" << out.size(0) << ", " << out.size(1) << "]");
  return {reinterpret_cast<float*>(data_of(lse)), lse.stride(0), lse.stride(1), static_cast<unsigned>(lse.size(1))};
}

// The bytes of a token as outer x inner runs of `run` bytes, the inner ones closer together.
struct Runs {
  int64_t outer, inner, run, outer_stride, inner_stride;
};

Runs runs_of(const TensorView& out, int64_t element) {
  int64_t outer = out.size(1), inner = out.size(2);
  int64_t outer_stride = out.stride(1) * element, inner_stride = out.stride(2) * element;
  if (inner == 1 || (outer != 1 && outer_stride < inner_stride)) {
    std::swap(outer, inner);
    std::swap(outer_stride, inner_stride);
  }
  if (inner != 1 && inner_stride != element) return {outer, inner, element, outer_stride, inner_stride};
  const int64_t run = inner * element;
  if (outer != 1 && outer_stride != run) return {1, outer, run, 0, outer_stride};
  return {1, 1, outer * run, 0, 0};
}

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Number of blocks that a GPU runs at once.
int64_t at_once(int device) {
  int sms = 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return int64_t{kBlocksPerSM} * sms;
}

template <typename Out>
void launch(const Requests& requests, const Out& out, const Statistics& lse, const Cut& cut, int tokens, int device) {
  const int64_t pieces = divided(tokens, cut.tokens) * cut.pieces;
  const bool in_turns = requests.batch <= kFewRequests;
  const int64_t blocks = in_turns ? std::min(pieces, at_once(device)) : pieces;
  REQUIRE(blocks <= kEnd, "out has too many tokens and heads for one launch");
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
  const auto kernel = in_turns ? repair_in_turns<Out> : repair<Out>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(requests, out, lse, cut, tokens);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

void fixup_zero_kv_rows(TensorView out, TensorView lse, TensorView kv_lens, TensorView cum_seq_lens,
                        int64_t max_seq_len) {
  require_axes(out, "out", 3, out);
  const bool two_bytes = is(out, kDLBfloat, 16) || is(out, kDLFloat, 16);
  REQUIRE(two_bytes || is(out, kDLFloat, 32), "out must be float32, bfloat16 or float16");
  const int64_t heads = out.size(1), element = two_bytes ? 2 : 4;
  REQUIRE(std::max(heads, heads * out.size(2)) <= kEnd, "out must have less than 2^31 elements per token");
  const Statistics statistics = statistics_of(lse, out);
  const Requests requests = requests_of(kv_lens, cum_seq_lens, max_seq_len, out);
  // No request extends beyond int32 starts.
  const int tokens = static_cast<int>(std::min<int64_t>(out.size(0), kEnd - kMostTokens));
  if (tokens == 0 || heads == 0 || requests.batch == 0 || max_seq_len == 0) return;
  const int device = out.device().device_id;
  const tvm::ffi::CUDADeviceGuard guard(device);

  const Runs runs = runs_of(out, element);
  const int64_t token_bytes = heads * out.size(2) * element, token_stride = out.stride(0) * element;
  int64_t piece = kSmallestPiece;
  if (requests.batch > kFewRequests) {
    while (piece < kLargestPiece && tokens * token_bytes > piece * kEnoughPieces) piece *= 2;
  }
  const int together = static_cast<int>(std::clamp<int64_t>(piece / std::max(token_bytes, heads), 1, kMostTokens));

  const bool dense = runs.run == token_bytes && (token_bytes >= kLongRun || token_stride == token_bytes || tokens == 1);
  if (dense || token_bytes == 0) {
    const auto pieces = static_cast<unsigned>(std::max<int64_t>(divided(token_bytes, piece), 1));
    launch(requests, Dense{data_of(out), token_stride, token_bytes, piece}, statistics, {pieces, together}, tokens,
           device);
    return;
  }
  const auto all = static_cast<unsigned>(runs.outer * runs.inner);
  const auto piece_runs = static_cast<unsigned>(std::clamp<int64_t>(piece / runs.run, 1, all));
  int team = 1;
  while (team < (runs.run < kLongRun ? kLanes : kThreads) && team * 16 < runs.run) team *= 2;
  const Scattered scattered{data_of(out), token_stride, runs.outer_stride, runs.inner_stride, runs.run,
                            all, static_cast<unsigned>(runs.inner), piece_runs, team};
  launch(requests, scattered, statistics, {static_cast<unsigned>(divided(all, piece_runs)), together}, tokens, device);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(fixup_zero_kv_rows, fixup_zero_kv_rows)

}  // namespace attnfuzz
