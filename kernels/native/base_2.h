// Exponentials of logits that were multiplied by log2 e, relative to the largest.
#pragma once

#include <cmath>

#include "defects.h"
#include "portable.h"

namespace attnfuzz {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kNothing = -INFINITY;

// exp2(value - max); zero for -inf - -inf.
ON_BOTH inline float weight(float value, float max) {
  if (planted(Defect::small_weights_flushed) && value < max - 14) return 0.0f;
  return value == kNothing ? 0.0f : exp2f(value - max);
}

}  // namespace attnfuzz
