// A kernel that reads the shared memory that it gets, and clears it.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace attnfuzz {
namespace {

__global__ void count(uint32_t words, uint32_t word, int32_t* counts) {
  extern __shared__ volatile uint32_t shared[];
  int32_t mine = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
    mine += shared[i] == word;
    shared[i] = 0;
  }
  atomicAdd(counts + blockIdx.x, mine);
}

// Adds to each of `counts`, int32 [blocks], how many of a block's `bytes` of shared memory hold `word`, in words.
void found(int64_t bytes, int64_t word, tvm::ffi::TensorView counts, int64_t stream) {
  cudaError_t error =
      cudaFuncSetAttribute(count, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) {
    count<<<static_cast<unsigned>(counts.size(0)), 256, static_cast<size_t>(bytes),
            reinterpret_cast<cudaStream_t>(stream)>>>(static_cast<uint32_t>(bytes / 4), static_cast<uint32_t>(word),
                                                       static_cast<int32_t*>(counts.data_ptr()));
    error = cudaGetLastError();
  }
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(found, found)

}  // namespace attnfuzz
