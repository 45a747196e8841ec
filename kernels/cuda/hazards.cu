// Planted mistakes of a kernel that a tool must report: one for each tool of compute-sanitizer.
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace attnfuzz {
namespace {

constexpr int kThreads = 64;

// Two warps: the second half of the sums reads words of the other warp without a barrier in between.
__global__ void racing(float* out) {
  __shared__ float words[kThreads];
  words[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = words[kThreads - 1 - threadIdx.x];
}

// Half of each warp waits for the others at a barrier that they don't reach.
__global__ void diverging(float* out) {
  if (threadIdx.x % 2 == 0) __syncthreads();
  out[threadIdx.x] = 1.0F;
}

// `unwritten` is memory that nothing has written.
__global__ void reading_unwritten(float* out, const float* unwritten) { out[threadIdx.x] = unwritten[threadIdx.x]; }

// `out` has room for one number less than there are threads.
__global__ void writing_outside(float* out) { out[threadIdx.x + 1] = 1.0F; }

// Launches the kernel of a tool on kThreads floats at `out`, and as many at `unwritten`.
void make(int64_t tool, int64_t out, int64_t unwritten, int64_t device) {
  const tvm::ffi::CUDADeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
  auto* target = reinterpret_cast<float*>(out);
  switch (tool) {
    case 0: racing<<<1, kThreads, 0, stream>>>(target); break;
    case 1: diverging<<<1, kThreads, 0, stream>>>(target); break;
    case 2: reading_unwritten<<<1, kThreads, 0, stream>>>(target, reinterpret_cast<const float*>(unwritten)); break;
    default: writing_outside<<<1, kThreads, 0, stream>>>(target); break;
  }
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make, make)

}  // namespace attnfuzz
