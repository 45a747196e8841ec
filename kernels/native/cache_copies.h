// Copies out of a KV cache in pages, and within it. Page ids, lengths and slots are trusted (TRAPS.md).
#pragma once

#include "indices.h"
#include "views.h"

namespace attnfuzz {

// Where a gather finds each row's tokens, from `starts` on, and the rows of `out` that they fill: from first[b] to
// first[b + 1].
struct Gather {
  PageTable pages;
  Indices starts, first;
  int64_t batch;
};

// Copies tokens out of the pool. Another dtype than that of `out` is one of fp8, whose numbers are multiplied by `scale`.
void gather(const Pool& pool, const Rows& out, const Gather& where, float scale);

// Copies page source[i] to page target[i], one after another.
void copy_pages(const Pool& pool, const Indices& source, const Indices& target, int64_t count);

// Copies token source[i] to token target[i]: slots of pages, counted through the pool. All are read before the first is
// written.
void move_tokens(const Pool& pool, const Indices& source, const Indices& target, int64_t count);

}  // namespace attnfuzz
