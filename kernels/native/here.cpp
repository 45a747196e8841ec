#include "tensors.h"

namespace attnfuzz {

void require_here(const TensorView& tensor, const char* name) {
  REQUIRE(tensor.device().device_type == kDLCPU, name << " must be on the CPU");
}

}  // namespace attnfuzz
