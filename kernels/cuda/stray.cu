// One access of one thread to any address, like a kernel's access past the end of a tensor.
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace attnfuzz {
namespace {

__global__ void access(volatile uint16_t* at, bool write) {
  // The value is used, or the read would be optimised away; no memory contains a value unequal to itself.
  if (write || *at != *at) *at = 0x5a5a;
}

void stray(int64_t address, bool write, int64_t device) {
  const tvm::ffi::CUDADeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
  access<<<1, 1, 0, stream>>>(reinterpret_cast<volatile uint16_t*>(address), write);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(stray, stray)

}  // namespace attnfuzz
