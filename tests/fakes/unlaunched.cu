// A kernel that can't be launched, and whose launch nobody checks: what a library does that ignores the error.
#include <cuda_runtime.h>
#include <tvm/ffi/function.h>

namespace attnfuzz {
namespace {

__global__ void idle() {}

void unlaunched() {
  // CUDA allows 1,024 threads in a block.
  idle<<<1, 2048>>>();
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(unlaunched, unlaunched)

}  // namespace attnfuzz
