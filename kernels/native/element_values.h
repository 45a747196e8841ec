// Conversion of single elements: to fp32 exactly, and back rounded to nearest, ties to even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "defects.h"
#include "portable.h"

namespace attnfuzz {

ON_BOTH inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

ON_BOTH inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

ON_BOTH inline float from_bf16(uint16_t value) { return float_of(uint32_t{value} << 16); }

// Shifted into place, an fp16 is 2^-112 times its value as an fp32, subnormals included: one multiplication corrects
// all but infinities and NaN, whose exponent is filled in afterwards.
ON_BOTH inline float from_f16(uint16_t half) {
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t exponent = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return float_of(scaled | exponent | uint32_t{half & 0x8000u} << 16);
}

// OCP 8-bit floating point, E4M3: bias 7, no infinities, NaN is all ones. Converted like fp16.
ON_BOTH inline float from_e4m3(uint8_t code) {
  const uint32_t magnitude = uint32_t{code & 0x7fu} << 20;
  const uint32_t scaled = magnitude == 0x07f00000u ? 0x7fc00000u : bits_of(float_of(magnitude) * 0x1p120f);
  return float_of(scaled | uint32_t{code & 0x80u} << 24);
}

ON_BOTH inline uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if (planted(Defect::output_rounded_toward_zero)) return static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ON_BOTH inline uint16_t to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | static_cast<uint16_t>(bits >> 13 & 0x1ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 aligns the last bit of the sum with 2^-24, and the addition rounds to nearest even.
    return sign | static_cast<uint16_t>(bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

}  // namespace attnfuzz
