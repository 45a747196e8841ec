// Element types, and conversion of rows to and from fp32. All arithmetic is in fp32.
#pragma once

#include <cstdint>

#include "portable.h"

namespace attnfuzz {

enum class Element { f32, bf16, f16, e4m3, e2m1 };


// Bytes of a unit of strides: two elements of e2m1 are one.
ON_BOTH constexpr int64_t bytes(Element element) {
  return element == Element::f32 ? 4 : element == Element::e4m3 || element == Element::e2m1 ? 1 : 2;
}

// Reads n elements at `row` into `to`. Reads nothing else: rows may end where pages end.
using LoadRow = void (*)(const void* row, int64_t n, float* to);

// Writes n elements to `row`, rounded to nearest, ties to even. NaN stays NaN, overflow becomes infinity, 448 in e4m3
// or 6 in e2m1, which has no NaN.
using StoreRow = void (*)(const float* from, int64_t n, void* row);

LoadRow load_row(Element element);
StoreRow store_row(Element element);

}  // namespace attnfuzz
