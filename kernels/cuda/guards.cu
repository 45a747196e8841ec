// Filling, copying and comparing runs of the memory around tensors: one launch for many runs. Filling shared memory.
//
// Runs are arguments of the launch itself: nothing has to be copied to the device first, and a launch can be captured.
// Errors are exceptions; nothing synchronises.

#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace attnfuzz {
namespace {

// `nbytes` from `address` on, and their source or counterpart: byte i belongs to byte (i + phase) & mask from `other`
// on. A mask of all ones is for plain memory, with a phase of 0. Otherwise `other` is a pattern of mask + 1 bytes, and
// the phase is that of the address in its 16 bytes, which pairs vectors of the run with vectors of the pattern.
struct Run {
  uint64_t address;
  uint64_t other;
  uint64_t nbytes;
  uint64_t mask;
};

constexpr uint64_t kPlain = ~uint64_t{0};
constexpr uint64_t kVector = sizeof(uint4);
constexpr int kRuns = 64;  // per launch: 2 KiB of arguments, of the 4 that every GPU takes
constexpr int kThreads = 256;
constexpr uint64_t kBytesOfBlock = 4 * kThreads * kVector;  // so that one slab of 2 MiB has blocks for all of a GPU
constexpr uint64_t kMaxBlocks = 2048;

struct Runs {
  Run run[kRuns];
};

// The vectors of a run, aligned in both memories; none if their alignments differ.
struct Split {
  uint64_t phase;
  uint64_t head;
  uint64_t vectors;

  __device__ explicit Split(const Run& run) {
    phase = run.mask == kPlain ? 0 : run.address % kVector;
    head = (kVector - run.address % kVector) % kVector;
    const bool aligned = (run.other + phase) % kVector == run.address % kVector;
    vectors = aligned && head < run.nbytes ? (run.nbytes - head) / kVector : 0;
    if (vectors == 0) head = 0;
  }
};

__device__ const uint8_t* other_of(const Run& run, const Split& split, uint64_t offset) {
  return reinterpret_cast<const uint8_t*>(run.other) + ((offset + split.phase) & run.mask);
}

// Calls on_vector(offset) and on_byte(offset) for all of a run, which the blocks of its row share.
template <typename OnVector, typename OnByte>
__device__ void for_all(const Run& run, const Split& split, OnVector on_vector, OnByte on_byte) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first; i < split.vectors; i += step) on_vector(split.head + i * kVector);
  const uint64_t in_vectors = split.vectors * kVector;
  for (uint64_t i = first; i < run.nbytes - in_vectors; i += step) on_byte(i < split.head ? i : i + in_vectors);
}

__global__ void __launch_bounds__(kThreads) write_runs(const __grid_constant__ Runs runs) {
  const Run& run = runs.run[blockIdx.y];
  const Split split(run);
  auto* target = reinterpret_cast<uint8_t*>(run.address);
  for_all(
      run, split,
      [&](uint64_t offset) {
        *reinterpret_cast<uint4*>(target + offset) =
            *reinterpret_cast<const uint4*>(other_of(run, split, offset));
      },
      [&](uint64_t offset) { target[offset] = *other_of(run, split, offset); });
}

// results[2 * run]: the bytes from the first difference to the end of the run, 0 without one: zero is the neutral
// start, and the largest wins. results[2 * run + 1]: the number of differing bytes. They lie on the host, which is far
// away: a block writes there once, and only if it has found a difference. With `restore`, differing bytes are put back.
__global__ void __launch_bounds__(kThreads)
    compare_runs(const __grid_constant__ Runs runs, bool restore, unsigned long long* results) {
  const Run& run = runs.run[blockIdx.y];
  const Split split(run);
  auto* found = reinterpret_cast<uint8_t*>(run.address);
  unsigned long long count = 0;
  unsigned long long left = 0;
  const auto compare = [&](uint64_t offset, uint8_t one, uint8_t other) {
    if (one == other) return;
    ++count;
    left = max(left, static_cast<unsigned long long>(run.nbytes - offset));
    if (restore) found[offset] = other;
  };
  for_all(
      run, split,
      [&](uint64_t offset) {
        const uint4 one = *reinterpret_cast<const uint4*>(found + offset);
        const uint4 other = *reinterpret_cast<const uint4*>(other_of(run, split, offset));
        if (one.x == other.x && one.y == other.y && one.z == other.z && one.w == other.w) return;
        const auto* ours = reinterpret_cast<const uint8_t*>(&one);
        const auto* theirs = reinterpret_cast<const uint8_t*>(&other);
        for (uint64_t byte = 0; byte < kVector; ++byte) compare(offset + byte, ours[byte], theirs[byte]);
      },
      [&](uint64_t offset) { compare(offset, found[offset], *other_of(run, split, offset)); });
  __shared__ unsigned long long most_left, whole_count;
  if (__syncthreads_count(count != 0) == 0) return;
  if (threadIdx.x == 0) most_left = whole_count = 0;
  __syncthreads();
  if (count != 0) {
    atomicMax(&most_left, left);
    atomicAdd(&whole_count, count);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(results + 2 * blockIdx.y, most_left);
    atomicAdd(results + 2 * blockIdx.y + 1, whole_count);
  }
}

void check(cudaError_t error, const char* action) {
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << action << ": " << cudaGetErrorString(error);
}

// Calls launch(grid, part, first) for parts of the runs that fit the arguments of a launch.
template <typename Launch>
void in_parts(const tvm::ffi::Bytes& packed, const char* action, Launch launch) {
  if (packed.size() % sizeof(Run) != 0) {
    TVM_FFI_THROW(ValueError) << "runs are records of " << sizeof(Run) << " bytes, of which " << packed.size()
                              << " is no multiple";
  }
  const size_t count = packed.size() / sizeof(Run);
  for (size_t first = 0; first < count; first += kRuns) {
    const size_t size = std::min<size_t>(kRuns, count - first);
    Runs part;
    std::memcpy(part.run, packed.data() + first * sizeof(Run), size * sizeof(Run));
    uint64_t largest = 1;
    for (size_t i = 0; i < size; ++i) largest = std::max(largest, part.run[i].nbytes);
    const uint64_t blocks = std::min(kMaxBlocks, (largest + kBytesOfBlock - 1) / kBytesOfBlock);
    // Forget the error of an earlier launch, which must not count as this one's: `failed_launch` would have reported it.
    static_cast<void>(cudaGetLastError());
    launch(dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(size)), part, first);
    check(cudaGetLastError(), action);
  }
}

// Writes runs (packed Run records). `stream` is a cudaStream_t: torch's current one, which only Python knows, since
// there are no tensor arguments.
void write(tvm::ffi::Bytes packed, int64_t stream) {
  in_parts(packed, "writing guarded memory", [&](dim3 grid, const Runs& part, size_t) {
    write_runs<<<grid, kThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(part);
  });
}

// Compares runs: writes `results`, int64 [runs, 2] of zeros in page-locked memory of the host, as in compare_runs.
void compare(tvm::ffi::Bytes packed, bool restore, tvm::ffi::TensorView results, int64_t stream) {
  const size_t count = packed.size() / sizeof(Run);
  if (results.ndim() != 2 || static_cast<size_t>(results.size(0)) != count || results.size(1) != 2 ||
      results.dtype().code != kDLInt || results.dtype().bits != 64 || !results.IsContiguous() ||
      (results.device().device_type != kDLCPU && results.device().device_type != kDLCUDAHost)) {
    TVM_FFI_THROW(ValueError) << "results must be a contiguous int64 tensor of [" << count << ", 2] on the host";
  }
  auto* target = static_cast<unsigned long long*>(results.data_ptr());
  const auto queue = reinterpret_cast<cudaStream_t>(stream);
  in_parts(packed, "comparing guarded memory", [&](dim3 grid, const Runs& part, size_t first) {
    compare_runs<<<grid, kThreads, 0, queue>>>(part, restore, target + 2 * first);
  });
}

// Fills the dynamic shared memory of a block with ones: NaN in each format of floats, and -1.
__global__ void __launch_bounds__(kThreads) fill_shared(uint32_t vectors) {
  extern __shared__ uint4 shared[];
  const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  for (uint32_t i = threadIdx.x; i < vectors; i += kThreads) {
    // Not removed, although nothing reads it.
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(start + i * 16), "r"(~0U) : "memory");
  }
}

// Fills the shared memory of all processors. A block takes all that a block may have, so that each gets one.
void fill_shared_memory(int64_t device, int64_t stream) {
  struct Size {
    int processors = 0;
    int bytes = 0;
  };
  thread_local std::map<int64_t, Size> sizes;
  const auto [found, added] = sizes.try_emplace(device);
  Size& size = found->second;
  static_cast<void>(cudaGetLastError());
  if (added) {
    const int number = static_cast<int>(device);
    check(cudaDeviceGetAttribute(&size.processors, cudaDevAttrMultiProcessorCount, number), "asking for processors");
    check(cudaDeviceGetAttribute(&size.bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number),
          "asking for shared memory");
    check(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, size.bytes),
          "taking shared memory");
  }
  fill_shared<<<size.processors, kThreads, size.bytes, reinterpret_cast<cudaStream_t>(stream)>>>(
      static_cast<uint32_t>(size.bytes / kVector));
  check(cudaGetLastError(), "filling shared memory");
}

// Waits until `opened` has reached `ticket`, for at most `patience` nanoseconds, and delays the work queued behind it.
__global__ void hold_until(const volatile int* opened, int ticket, unsigned long long patience) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*opened - ticket < 0 && now - start < patience);
}

// Holds the stream: `opened` is the address of an int in page-locked memory, which the host raises to `ticket`.
void hold(int64_t opened, int64_t ticket, int64_t patience, int64_t stream) {
  hold_until<<<1, 1, 0, reinterpret_cast<cudaStream_t>(stream)>>>(reinterpret_cast<const int*>(opened),
                                                                  static_cast<int>(ticket), patience);
  check(cudaGetLastError(), "holding a stream");
}

// Returns the error of this thread's last failed call, "" if none failed, and clears it in the CUDA runtime. A kernel that
// could not be launched leaves its error there, and its caller may not look.
tvm::ffi::String failed_launch() {
  const cudaError_t error = cudaGetLastError();
  // An unfinished event is no error.
  if (error == cudaSuccess || error == cudaErrorNotReady) return "";
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(failed_launch, failed_launch)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fill_shared_memory, fill_shared_memory)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hold, hold)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(write, write)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(compare, compare)

}  // namespace attnfuzz
