// The kernels for GPUs, compiled for the CPU: a block is one thread, and blocks run one after the other.
#include "../../kernels/gpu/any_gpu/attention.cu"

namespace attnfuzz {

void require_here(const TensorView&, const char*) {}

}  // namespace attnfuzz
