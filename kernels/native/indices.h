// Arrays of indices.
#pragma once

#include <cstdint>

#include "defects.h"

namespace attnfuzz {

// [n] of int32 or int64.
struct Indices {
  const char* data;
  int64_t stride;
  bool wide;

  int64_t at(int64_t index) const {
    const bool wide = this->wide && !planted(Defect::slots_read_as_int32);
    const char* element = data + index * stride * (wide ? 8 : 4);
    return wide ? *reinterpret_cast<const int64_t*>(element) : *reinterpret_cast<const int32_t*>(element);
  }
};

}  // namespace attnfuzz
