// The rows of one request and one KV head: queries [first, last) times the query heads of the group. Each row has the
// state of an online softmax (Milakov and Gimelshein, arXiv:1805.02867), in fp32 and base 2.
#pragma once

#include <algorithm>
#include <cstdint>

#include "defects.h"
#include "keys.h"
#include "mask.h"
#include "views.h"

namespace attnfuzz {

// Keys converted to fp32 at a time, and shared by all rows.
constexpr int64_t kTile = 32;

// The state of a row: the largest logit (times log2 e), and relative to it the sums of exponentials and of weighted
// values. Plain memory [max, sum, values...], since it lies in the workspace between a split and its merge.
struct Partial {
  float* data;

  float& max() const { return data[0]; }
  float& sum() const { return data[1]; }
  float* values() const { return data + 2; }

  static int64_t floats(int64_t dim) { return dim + 2; }
};

// The query heads of a KV head. The defects work in tiles of 16 heads if a group has more.
inline Interval heads_of(int64_t kv_head, int64_t group, int64_t heads) {
  constexpr int64_t kHeads = 16;
  const Interval all{kv_head * group, (kv_head + 1) * group};
  if (group <= kHeads) return all;
  if (planted(Defect::last_tile_of_heads_dropped)) return {all.begin, all.begin + group / kHeads * kHeads};
  if (planted(Defect::head_tile_across_groups)) {
    const auto next_tile = [&](int64_t head) { return std::min((head + kHeads - 1) / kHeads * kHeads, heads); };
    return {next_tile(all.begin), next_tile(all.end)};
  }
  return all;
}

// One query block and its keys. Its rows are query-major.
struct Block {
  const Rows& query;
  int64_t first_row;          // row of `query` that holds query 0 of the request
  Interval queries;           // of the request
  int64_t kv_head;
  Interval heads;             // query heads of kv_head
  const Mask& mask;
  const Keys& keys;
  float logit_scale;

  int64_t group() const { return heads.end - heads.begin; }
  int64_t rows() const { return (queries.end - queries.begin) * group(); }
  int64_t token(int64_t row) const { return first_row + queries.begin + row / group(); }
  int64_t head(int64_t row) const {
    if (planted(Defect::query_heads_interleaved)) return row % group() * (query.heads / group()) + kv_head;
    return heads.begin + row % group();
  }
};

// Attends every row of `block` to its visible keys in `stretch`, and writes its state to partials[row]. `partials` is
// [rows][Partial::floats(keys.value_dim)].
void attend(const Block& block, Interval stretch, float* partials);

// Adds the state `other` to `into`. A part without keys is not read beyond its sum.
void merge(Partial into, Partial other, int64_t dim);

// Adds a row's sink to its state, and returns the sink's weight in the sum: 0 without sinks.
float add_sink(Partial partial, const Block& block, int64_t row, const Scalars& scalars);

// Writes row `row` of `block`: out = values / sum * output_scale, lse = max + log2(sum), with the head's sink in both.
// A row without keys gives 0 and -inf (with a sink, the sink's logit), unless its request's length is negative.
void finish(Partial partial, const Block& block, int64_t row, const Scalars& scalars, const Rows& out,
            const Statistics& lse);

}  // namespace attnfuzz
