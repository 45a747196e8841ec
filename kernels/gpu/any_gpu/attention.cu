// Decode, context and ragged attention (split_kv.h, prefill.h) for any GPU: simple, slow kernels with the semantics of
// those for the CPU. A block computes row after row of one request and head. Nothing is allocated or read on the host:
// a launch can be captured, and a replay reads the present metadata.
#include "../../native/prefill.h"
#include "../../native/split_kv.h"
#include "../../native/tensors.h"
#include "attend_row.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#else
#include <vector>
#endif

#include <algorithm>
#include <limits>

namespace attnfuzz {
namespace {

// A small number of requests is divided among more blocks, to fill a GPU.
constexpr int64_t kEnoughBlocks = 1 << 16;

// The work of one block: a share of a request's rows, for one head. Heads are adjacent.
struct Cut {
  int64_t shares, heads;

  template <typename Team, typename Cache>
  ON_GPU void run(const Team& team, const Call& call, const Cache& cache, int64_t block, void* memory) const {
    const int64_t head = block % heads, share = block / heads % shares, request = block / heads / shares;
    attend_share(team, call, cache, request, share, shares, head, Shared(memory, call.query.dim));
  }
};

#ifdef __CUDACC__

constexpr int kThreads = 128;

// Each warp computes one logit.
struct Block {
  __device__ int rank() const { return threadIdx.x; }
  __device__ int size() const { return kThreads; }
  __device__ int lanes() const { return 32; }
  __device__ void sync() const { __syncthreads(); }
  __device__ float sum_of_lanes(float value) const {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
  }
};

template <typename Cache>
__global__ void __launch_bounds__(kThreads) attend(const Call call, const Cache cache, const Cut cut) {
  extern __shared__ uint64_t memory[];
  cut.run(Block{}, call, cache, blockIdx.x, memory);
}

int current_device() {
  int device;
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetDevice(&device));
  return device;
}

template <typename Cache>
void launch(const Call& call, const Cache& cache, const Cut& cut, int64_t blocks, int64_t bytes) {
  REQUIRE(blocks <= std::numeric_limits<int>::max(), "too many requests and heads for one launch: " << blocks);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, current_device()));
  attend<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(call, cache, cut);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

#else

struct Alone {
  int rank() const { return 0; }
  int size() const { return 1; }
  int lanes() const { return 1; }
  void sync() const {}
  float sum_of_lanes(float value) const { return value; }
};

// For tests: the same blocks, one after the other.
template <typename Cache>
void launch(const Call& call, const Cache& cache, const Cut& cut, int64_t blocks, int64_t bytes) {
  std::vector<uint64_t> memory(bytes / sizeof(uint64_t) + 1);
  for (int64_t block = 0; block < blocks; ++block) cut.run(Alone{}, call, cache, block, memory.data());
}

#endif

// Shared memory that a block has by default on any GPU.
constexpr int64_t kMostShared = 48 << 10;

// `rows` is an upper bound on rows that is known on the host.
template <typename Cache>
void run(const Call& call, const Cache& cache, int64_t rows) {
  const int64_t bytes = Shared::bytes(call.query.dim, call.out.dim);
  REQUIRE(bytes <= kMostShared, "head dims of " << call.query.dim << " and " << call.out.dim
                                                << " are too large: a block has " << kMostShared << " bytes");
  const int64_t at_least = call.batch * call.query.heads;
  if (at_least <= 0) return;
  const int64_t shares = std::clamp<int64_t>(kEnoughBlocks / at_least, 1, std::max<int64_t>(rows, 1));
  launch(call, cache, {shares, call.query.heads}, shares * at_least, bytes);
}

}  // namespace

#ifdef __CUDACC__

void require_here(const TensorView& tensor, const char* name) {
  REQUIRE(tensor.device().device_type == kDLCUDA, name << " must be on a GPU");
  const int current = current_device();
  REQUIRE(tensor.device().device_id == current,
          name << " must be on the GPU of query, cuda:" << current << ", not on cuda:" << tensor.device().device_id);
}

#endif

// Does not split keys, and so leaves the workspace alone.
void decode(const Rows& query, const Pool& key, const Pool& value, char*, const PageTable& table,
            const Lengths& lengths, int64_t batch, int64_t q_len, int64_t, const Scalars& scalars,
            const Rows& out, const Statistics& lse) {
  const Call call{query, out, lse, scalars, lengths, {}, batch, q_len, query.heads / key.heads, false};
  run(call, PagedCache{key, value, table}, q_len);
}

void context(const Rows& query, const Pool& key, const Pool& value, const PageTable& table, const Lengths& lengths,
             const Lengths& cumulative, int64_t batch, const Scalars& scalars, const Rows& out, const Statistics& lse) {
  REQUIRE(!scalars.masks.bits, "these kernels have no custom masks");
  const Call call{query, out, lse, scalars, lengths, cumulative, batch, 0, query.heads / key.heads, false};
  run(call, PagedCache{key, value, table}, query.tokens);
}

void ragged(const Rows& query, const Rows& key, const Rows& value, const Lengths& lengths, const Lengths& cumulative_q,
            const Lengths& cumulative_kv, int64_t batch, bool write_empty, const Scalars& scalars, const Rows& out,
            const Statistics& lse) {
  const Call call{query, out, lse, scalars, lengths, cumulative_q, batch, 0, query.heads / key.heads, !write_empty};
  run(call, RaggedCache{key, value, cumulative_kv}, query.tokens);
}

}  // namespace attnfuzz
