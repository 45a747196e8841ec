#include "elements.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "defects.h"
#include "wide.h"

namespace attnfuzz {
namespace {

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

WIDE void load_f32(const void* row, int64_t n, float* to) { std::memcpy(to, row, n * sizeof(float)); }

WIDE void load_bf16(const void* row, int64_t n, float* to) {
  const auto* from = static_cast<const uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = float_of(uint32_t{from[i]} << 16);
}

// Shifted into place, an fp16 is 2^-112 times its value as an fp32, subnormals included: one multiplication mends all
// but infinities and NaN, whose exponent is filled in afterwards.
inline float from_f16(uint16_t half) {
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t exponent = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return float_of(scaled | exponent | uint32_t{half & 0x8000u} << 16);
}

WIDE void load_f16(const void* row, int64_t n, float* to) {
  const auto* from = static_cast<const uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = from_f16(from[i]);
}

// OCP 8-bit floating point, E4M3: bias 7, no infinities, NaN is all ones.
std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    float value = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(float(mantissa), -9);
    if ((code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    values[code] = code & 0x80 ? -value : value;
  }
  return values;
}

void load_e4m3(const void* row, int64_t n, float* to) {
  static const std::array<float, 256> values = e4m3_values();
  const auto* from = static_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = values[from[i]];
  if (planted(Defect::e4m3_subnormals_as_normal)) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] & 0x78 ? to[i] : std::copysign(0x1p-7f, to[i]) + to[i] / 2;
  }
  if (planted(Defect::fp8_loads_assume_alignment)) {
    // The processor faults where the address is no multiple of 16, as a GPU's does.
    using Vector __attribute__((vector_size(16))) = uint8_t;
    for (int64_t i = 0; i + 16 <= n; i += 16) (void)*reinterpret_cast<const volatile Vector*>(from + i);
  }
}

void store_f32(const float* from, int64_t n, void* row) { std::memcpy(row, from, n * sizeof(float)); }

uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if (planted(Defect::output_rounded_toward_zero)) return static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void store_bf16(const float* from, int64_t n, void* row) {
  auto* to = static_cast<uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
}

uint16_t to_f16(float value) {
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

void store_f16(const float* from, int64_t n, void* row) {
  auto* to = static_cast<uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = to_f16(from[i]);
}

}  // namespace

LoadRow load_row(Element element) {
  switch (element) {
    case Element::f32: return load_f32;
    case Element::bf16: return load_bf16;
    case Element::f16: return load_f16;
    case Element::e4m3: return load_e4m3;
  }
  return nullptr;
}

StoreRow store_row(Element element) {
  switch (element) {
    case Element::f32: return store_f32;
    case Element::bf16: return store_bf16;
    case Element::f16: return store_f16;
    case Element::e4m3: return nullptr;
  }
  return nullptr;
}

}  // namespace attnfuzz
