#include "elements.h"

#include <array>
#include <cmath>
#include <cstring>

#include "defects.h"
#include "element_values.h"
#include "wide.h"

namespace attnfuzz {
namespace {

WIDE void load_f32(const void* row, int64_t n, float* to) { std::memcpy(to, row, n * sizeof(float)); }

WIDE void load_bf16(const void* row, int64_t n, float* to) {
  const auto* from = static_cast<const uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = from_bf16(from[i]);
}

WIDE void load_f16(const void* row, int64_t n, float* to) {
  const auto* from = static_cast<const uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = from_f16(from[i]);
}

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = from_e4m3(static_cast<uint8_t>(code));
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
    // The processor faults if the address is not a multiple of 16, as a GPU does.
    using Vector __attribute__((vector_size(16))) = uint8_t;
    for (int64_t i = 0; i + 16 <= n; i += 16) (void)*reinterpret_cast<const volatile Vector*>(from + i);
  }
}

void load_e2m1(const void* row, int64_t n, float* to) {
  const auto* from = static_cast<const uint8_t*>(row);
  const bool swapped = planted(Defect::nibbles_read_in_reverse);
  for (int64_t i = 0; i < n; ++i) to[i] = from_e2m1(from[i / 2] >> ((i % 2 == 1) != swapped ? 4 : 0) & 15);
}

void store_f32(const float* from, int64_t n, void* row) { std::memcpy(row, from, n * sizeof(float)); }

void store_bf16(const float* from, int64_t n, void* row) {
  auto* to = static_cast<uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
}

void store_f16(const float* from, int64_t n, void* row) {
  auto* to = static_cast<uint16_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = to_f16(from[i]);
}

void store_e4m3(const float* from, int64_t n, void* row) {
  auto* to = static_cast<uint8_t*>(row);
  for (int64_t i = 0; i < n; ++i) to[i] = to_e4m3(from[i]);
}

void store_e2m1(const float* from, int64_t n, void* row) {
  auto* to = static_cast<uint8_t*>(row);
  const int first = planted(Defect::nibbles_written_in_reverse) ? 1 : 0;
  for (int64_t i = 0; i + 1 < n; i += 2) {
    to[i / 2] = static_cast<uint8_t>(to_e2m1(from[i + first]) | to_e2m1(from[i + 1 - first]) << 4);
  }
}

}  // namespace

LoadRow load_row(Element element) {
  switch (element) {
    case Element::f32: return load_f32;
    case Element::bf16: return load_bf16;
    case Element::f16: return load_f16;
    case Element::e4m3: return load_e4m3;
    case Element::e2m1: return load_e2m1;
  }
  return nullptr;
}

StoreRow store_row(Element element) {
  switch (element) {
    case Element::f32: return store_f32;
    case Element::bf16: return store_bf16;
    case Element::f16: return store_f16;
    case Element::e4m3: return store_e4m3;
    case Element::e2m1: return store_e2m1;
  }
  return nullptr;
}

}  // namespace attnfuzz
