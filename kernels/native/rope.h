// Rotary embedding of rows, in fp32: element pairs (x, y) become (x cos - y sin, y cos + x sin).
#pragma once

#include <vector>

#include "indices.h"
#include "views.h"

namespace attnfuzz {

// The rotation of each token, by its position. Cosines and sines are read from a table, or computed from theta if the
// table is null. Positions are trusted: a position beyond the table is read from there.
struct Rope {
  Indices positions;  // of each token
  const float* table;  // [positions, dim]: cosines, then sines
  int64_t table_stride;
  float theta;
  int64_t dim, first;  // number of rotated elements of a row, and the index of the first
  bool neighbours;     // pairs are (2 i, 2 i + 1), or else (i, i + dim / 2)
  int64_t page_size;   // for a planted mistake
};

// Rotates rows of one token after another.
class Rotator {
 public:
  explicit Rotator(const Rope& rope);

  // Sets the token of the following rows.
  void turn_to(int64_t token);

  // Rotates a row of `width` elements.
  void turn(float* row, int64_t width) const;

 private:
  void pair(float* row, int64_t one, int64_t other, int64_t index) const;

  const Rope rope_;
  std::vector<float> frequencies_, cosines_, sines_;
};

// Rotates every row into `out`, which may be the rows themselves. Divides by `scale` if the dtypes differ.
void rotate(const Rows& rows, const Rows& out, int64_t tokens, const Rope& rope, float scale);

}  // namespace attnfuzz
