// Recurrent state: delta rules, lightning attention and Mamba, token by token, and causal convolutions. States are in
// slots of a pool. Slots, starts and counts are trusted (TRAPS.md).
#pragma once

#include <cstdint>

#include "elements.h"

namespace attnfuzz {

// [rows, columns, elements] with contiguous elements, or absent (data is null).
struct Table {
  char* data = nullptr;
  Element element = Element::f32;
  int64_t row_stride = 0, column_stride = 0;

  explicit operator bool() const { return data; }

  char* address(int64_t row, int64_t column) const {
    return data + (row * row_stride + column * column_stride) * bytes(element);
  }

  void load(int64_t row, int64_t column, int64_t n, float* to) const { load_row(element)(address(row, column), n, to); }

  float at(int64_t row, int64_t column) const {
    float value;
    load(row, column, 1, &value);
    return value;
  }
};

// [rows, columns] of slots in int32.
struct Slots {
  const int32_t* data;
  int64_t row_stride, column_stride;

  int64_t at(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }
};

// The pool: slots of `elements` contiguous numbers.
struct States {
  char* data;
  Element element;
  int64_t slot_stride, elements;

  char* at(int64_t slot) const;
};

// The rows of a step. A row begins at token starts[i], and continues the state of its slot if initial[i], or if
// `initial` is null. With `verify`, it reads column max(accepted[i] - 1, 0) of `sources`, and writes the state after
// token t to column t of `targets`. Rows with negative slots are skipped.
struct Batch {
  Slots sources, targets;
  const int32_t* starts;
  const uint8_t* initial;
  const int32_t* accepted;
  int64_t rows;
  bool verify;
};

// The factors of the recurrence. `decay` has the logarithm of a decay for each value head, or for each element of its
// key if `by_key`; with `rate`, the logarithm is -rate softplus(decay + bias). `beta` is absent without a delta
// rule, and the argument of a sigmoid if `sigmoid`. Mamba has a `step`, whose softplus multiplies the value and `rate`.
struct Factors {
  Table query, key, value, decay, beta, gate;
  Table rate, bias, skip;
  float scale, epsilon;
  bool by_key, sigmoid, normed, delta, ssm;
  int64_t heads, value_heads, key_dim, value_dim;
};

void recur(const Factors& factors, const Batch& batch, const States& states, const Table& out);

struct Convolution {
  Table x, weight, bias;
  int64_t channels, width, window;
  bool activated;
};

void convolve(const Convolution& convolution, const Batch& batch, const States& states, const Table& out);

}  // namespace attnfuzz
