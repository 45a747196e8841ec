// The ops of sparse attention: an indexer's scores, the top k of each row, transforms of their positions, attention over
// lists, and writes into the indexer's cache. Like the CUDA kernels that they stand for, they take indices, lengths and
// tables as they are (TRAPS.md).
#pragma once

#include <cstdint>

#include "indices.h"
#include "views.h"

namespace attnfuzz {

// The indexer's cache: each page has the keys of its slots, `dim` bytes of e4m3 each, and then their scales in fp32.
struct IndexCache {
  char* data;
  int64_t page_stride, page_size, dim;

  uint8_t* key(int64_t page, int64_t slot) const {
    return reinterpret_cast<uint8_t*>(data + page * page_stride + slot * dim);
  }
  char* scale(int64_t page, int64_t slot) const { return data + page * page_stride + page_size * dim + slot * 4; }
};

// [tokens, heads, dim] in e4m3, and the weights [tokens, heads] of the heads.
struct IndexQueries {
  Rows rows;
  Statistics weights;
};

// [rows, columns] in fp32.
struct Scores {
  char* data;
  int64_t rows, columns, stride;

  float* row(int64_t index) const { return reinterpret_cast<float*>(data) + index * stride; }
};

// [rows, length] of int32.
struct Lists {
  int32_t* data = nullptr;
  int64_t rows = 0, length = 0, stride = 0;

  int32_t* row(int64_t index) const { return data + index * stride; }
};

// Scores of packed keys [n, dim] in e4m3 with a scale each: row r has those of keys starts[r] to ends[r], and -inf
// elsewhere.
void dense_logits(const IndexQueries& queries, const Rows& keys, const float* scales, Lengths starts, Lengths ends,
                  const Scores& logits);

// Scores of the keys of each request, by its page table. Request b has `next_n` rows, the last one of which sees
// lengths[b] keys, and each one before one key less. The rest of a row is -inf.
void paged_logits(const IndexQueries& queries, const IndexCache& cache, int64_t next_n, Lengths lengths, int64_t batch,
                  const PageTable& table, const Scores& logits);

// The positions of the k = out.length highest scores among the lengths[r] from starts[r] on, counted from there, in any
// order, and -1 behind them. NaN is above all numbers. Ties go to the earlier position.
void top_k(const Scores& scores, Lengths starts, Lengths lengths, const Lists& out);

// Slots of positions: table[requests[r]][p / page_size] * page_size + p % page_size; -1 stays.
void to_slots(const Lists& positions, Lengths requests, const PageTable& table, int64_t page_size, const Lists& slots);

// offsets[r] + p; -1 stays.
void to_offsets(const Lists& positions, Lengths offsets, const Lists& out);

// One pool and the lists of its slots. Entries below 0 or at `slots` and above are skipped. `counts` may be absent.
// Values have lists of their own, with the shape and stride of `lists`, if `value_lists` has data.
struct SparseKeys {
  Rows keys, values;
  bool packed;
  Lists lists, value_lists;
  Lengths counts;
};

// Attention of each query to the keys of its list, and to those of a second one if that has a length. With `packed`
// keys, a slot has 656 bytes. LSE in base 2, -inf for a row without keys, whose output is 0.
void sparse_attention(const Rows& query, const SparseKeys& first, const SparseKeys& second, float scale,
                      const float* sinks, const Rows& out, const Statistics& lse);

// [rows, length] of int64.
struct Windows {
  const int64_t* data;
  int64_t rows, length, stride;

  int64_t at(int64_t row, int64_t index) const { return data[row * stride + index]; }
};

// Writes values and scores + embedding[position % rows] of each token behind each other into the row of states at its
// slot. Negative slots are skipped.
void save_states(const Scores& values, const Scores& scores, const Scores& embedding, Indices positions, Indices slots,
                 const Scores& states);

// Pools the rows of states at windows[t], those below 0 left out, for each token that ends a group of `ratio` and has a
// slot; normalises, rotates by the first position of the group, and quantises with a power of two.
void compress(const Scores& states, const Windows& windows, Indices positions, Indices slots, const float* weight,
              float epsilon, const Scores& cos_sin, const IndexCache& cache, int64_t ratio);

// Quantises key t and writes it to slot slots[t], with its largest magnitude / 448 as its scale, rounded up to a power
// of two if `powers`. Negative slots are skipped.
void write_index_keys(const Rows& keys, Indices slots, const IndexCache& cache, bool powers);

}  // namespace attnfuzz
