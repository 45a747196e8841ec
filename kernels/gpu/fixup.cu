// Repairs the rows of requests without keys (out = 0 and lse = -inf) in one launch for any batch.
//
// Zero has the same bits in every element type, so out is treated as bytes.
//
// With few requests, one may own most of the rows to clear, or none. If out has no gaps, each block of a grid that runs
// at once reads all requests, and the grid clears one run of empty requests after another together.
//
// Otherwise out is cut into pieces, several whole tokens, or part of one token that has many bytes, with a block for
// each. Each warp finds the requests of its tokens by itself, so that warps exchange nothing.
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

constexpr int kWindows = 4;
constexpr int kFewRequests = kWindows * kLanes;
constexpr int kBlocksPerSM = 8;

// Bytes per block of a short output without gaps.
constexpr int64_t kShare = 8 << 10;

// Small pieces spread a short output over all SMs; large ones save thousands of blocks for a large output.
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

  // Clears the number `index` of those from the token `first` on.
  __device__ void clear_one(int64_t first, int64_t index) const {
    if (token_stride == heads && head_stride == 1) {
      data[first * token_stride + index] = -INFINITY;
      return;
    }
    const int64_t token = index / heads;
    data[(first + token) * token_stride + (index - token * heads) * head_stride] = -INFINITY;
  }
};

// A block for each piece.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    repair(const Requests requests, const Out out, const Statistics lse, const Cut cut, const int tokens) {
  const unsigned group = blockIdx.x / cut.pieces, piece = blockIdx.x - group * cut.pieces;
  int token = group * cut.tokens;
  const int end = token + min(cut.tokens, tokens - token);
  Window window(requests, token);
  while (token < end) {
    const Stretch stretch = window.at(token);
    const int last = min(stretch.last, end);
    if (stretch.empty) {
      out.clear(token, last, piece);
      if (piece == 0) lse.clear(token, last);
    }
    token = last;
  }
}

// An output without gaps, in units of 16 bytes.
struct Flat {
  uint4* data;
  int64_t token_units;
};

// The threads of a grid, which share out runs of units: each run begins where the last one ended.
class Sharing {
 public:
  __device__ Sharing() : threads_(gridDim.x * kThreads), rank_(blockIdx.x * kThreads + threadIdx.x) {}

  // Calls `write` for this thread's share of `count` units.
  template <typename Write>
  __device__ void share(int64_t count, const Write& write) {
    // Most batches have one run: it does not wait for a division.
    const auto ended = before_ == 0 ? 0 : static_cast<unsigned>(before_ % threads_);
    const unsigned begin = rank_ >= ended ? rank_ - ended : rank_ + threads_ - ended;
#pragma unroll 4
    for (int64_t unit = begin; unit < count; unit += threads_) write(unit);
    before_ += max(count, int64_t{0});
  }

 private:
  const unsigned threads_, rank_;
  int64_t before_ = 0;
};

// The number of lanes from `begin` on whose bits are all set.
__device__ int run_of(unsigned bits, int begin) {
  const unsigned others = ~(bits >> begin);
  return others == 0 ? kLanes : __ffs(others) - 1;
}

// All blocks run at once, for a batch of few requests. Short code: fetching it is much of a short launch.
__global__ void __launch_bounds__(kThreads)
    repair_flat(const Requests requests, const Flat out, const Statistics lse, const int tokens) {
  static_assert(kFewRequests == kThreads);
  __shared__ int firsts[kFewRequests], lasts[kFewRequests];
  __shared__ unsigned empties[kWindows], wholes[kWindows];
  const int request = threadIdx.x;
  bool empty = false, whole = false;
  if (request < requests.batch) {
    const int keys = requests.kv_lens.at(request);
    const int64_t first = requests.starts.at(request), next = requests.starts.at(request + 1);
    empty = keys == 0 && next > first;
    whole = empty && next - first <= requests.max_seq_len;
    firsts[request] = static_cast<int>(max(first, int64_t{0}));
    lasts[request] = static_cast<int>(min(min(next, first + requests.max_seq_len), static_cast<int64_t>(tokens)));
  }
  const unsigned warp_empty = __ballot_sync(kAllLanes, empty), warp_whole = __ballot_sync(kAllLanes, whole);
  if (request % kLanes == 0) {
    empties[request / kLanes] = warp_empty;
    wholes[request / kLanes] = warp_whole;
  }
  __syncthreads();
  Sharing of_out, of_lse;
#pragma unroll 1
  for (int window = 0; window < kWindows; ++window) {
    unsigned left = empties[window];
    while (left != 0) {
      // Neighbours without keys are one run, unless max_seq_len ends one of them earlier.
      const int begin = __ffs(left) - 1;
      const int end = begin + max(run_of(wholes[window], begin), 1) - 1;
      left &= end == kLanes - 1 ? 0 : ~0u << (end + 1);
      const int64_t first = firsts[window * kLanes + begin], count = lasts[window * kLanes + end] - first;
      uint4* const rows = out.data + first * out.token_units;
      of_out.share(count * out.token_units, [=](int64_t unit) { rows[unit] = make_uint4(0, 0, 0, 0); });
      of_lse.share(count * lse.heads, [=](int64_t unit) { lse.clear_one(first, unit); });
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
  const Integers lengths = integers_of(kv_lens, "kv_lens", out);
  const Integers starts = integers_of(cum_seq_lens, "cum_seq_lens", out);
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

cudaStream_t stream_of(int device) { return static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device)); }

template <typename Out>
void launch(const Requests& requests, const Out& out, const Statistics& lse, const Cut& cut, int tokens, int device) {
  const int64_t blocks = divided(tokens, cut.tokens) * cut.pieces;
  REQUIRE(blocks <= kEnd, "out has too many tokens and heads for one launch");
  repair<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(device)>>>(requests, out, lse, cut, tokens);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

void launch_flat(const Requests& requests, const Flat& out, const Statistics& lse, int tokens, int device) {
  const int64_t shares = divided(tokens * out.token_units * int64_t{sizeof(uint4)}, kShare);
  const auto blocks = static_cast<unsigned>(std::min(shares, at_once(device)));
  repair_flat<<<blocks, kThreads, 0, stream_of(device)>>>(requests, out, lse, tokens);
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
  const auto unit = static_cast<int64_t>(sizeof(uint4));
  const bool aligned = reinterpret_cast<intptr_t>(data_of(out)) % unit == 0 && token_bytes % unit == 0;
  if (requests.batch <= kFewRequests && aligned && token_bytes != 0 && runs.run == token_bytes &&
      (token_stride == token_bytes || tokens == 1)) {
    launch_flat(requests, {reinterpret_cast<uint4*>(data_of(out)), token_bytes / unit}, statistics, tokens, device);
    return;
  }
  int64_t piece = kSmallestPiece;
  while (piece < kLargestPiece && tokens * token_bytes > piece * kEnoughPieces) piece *= 2;
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
