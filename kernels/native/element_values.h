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

// OCP E2M1: one bit of mantissa, magnitudes up to 6, neither infinities nor NaN.
ON_BOTH inline float from_e2m1(uint8_t code) {
  const int magnitude = code & 7;
  const float value = magnitude < 4 ? 0.5f * magnitude : magnitude == 7 ? 6.0f : magnitude - 2.0f;
  return code & 8 ? -value : value;
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

// The magnitude of an e4m3 below 448 that is next to this one toward zero.
ON_BOTH inline uint32_t cut_to_e4m3(uint32_t magnitude) {
  if (magnitude >= 0x3c800000) return (magnitude - 0x3c000000) >> 20;
  return static_cast<uint32_t>(float_of(magnitude) * 0x1p9f);
}

// OCP E4M3, saturated: overflow and infinities become 448. NaN stays NaN.
ON_BOTH inline uint8_t to_e4m3(float value) {
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (planted(Defect::written_nan_saturated) && value != value) return 0x7e;
  if (magnitude > 0x7f800000) return sign | 0x7f;
  if (planted(Defect::fp8_overflow_is_nan) && magnitude > 0x43e80000) return sign | 0x7f;
  if (magnitude >= 0x43e00000) return sign | 0x7e;
  if (planted(Defect::fp8_subnormals_flushed) && magnitude < 0x3c800000) return sign;
  if (planted(Defect::fp8_write_truncated)) return sign | static_cast<uint8_t>(cut_to_e4m3(magnitude));
  if (magnitude < 0x3c800000) {
    // Subnormal: adding 2^14 aligns the last bit of the sum with 2^-9, and the addition rounds to nearest even.
    return sign | static_cast<uint8_t>(bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f));
  }
  const uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
  return sign | static_cast<uint8_t>((rounded - 0x3c000000) >> 20);
}

// OCP E2M1, saturated: the nearest, ties to even; NaN becomes 6, as in a GPU's conversion.
ON_BOTH inline uint8_t to_e2m1(float value) {
  const float magnitude = float_of(bits_of(value) & 0x7fffffff);
  const auto sign = static_cast<uint8_t>(bits_of(value) >> 28 & 8);
  if (planted(Defect::e2m1_truncated)) {
    constexpr float magnitudes[] = {0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint8_t code = 0;
    for (float each : magnitudes) code += magnitude >= each;
    return sign | code;
  }
  constexpr float edges[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
  uint8_t code = 0;
  for (int i = 0; i < 7; ++i) code += !(i % 2 ? magnitude < edges[i] : magnitude <= edges[i]);
  return sign | code;
}

}  // namespace attnfuzz
