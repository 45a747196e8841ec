// Copies from a paged KV cache, and within it. Page ids, lengths and slots are trusted (TRAPS.md).
#pragma once

#include "indices.h"
#include "views.h"

namespace attnfuzz {

// Where a gather finds each row's tokens, from `starts` on, and the rows of `out` that they fill, first[b] to
// first[b + 1].
struct Gather {
  PageTable pages;
  Indices starts, first;
  int64_t batch;
};

// Copies tokens from the pool. A pool whose dtype differs from that of `out` is fp8 and gets multiplied by `scale`.
void gather(const Pool& pool, const Rows& out, const Gather& where, float scale);

// Copies page source[i] to page target[i], one after another.
void copy_pages(const Pool& pool, const Indices& source, const Indices& target, int64_t count);

// Copies token source[i] to token target[i]: slots of pages, numbered through the whole pool. All tokens are read
// before the first is written.
void move_tokens(const Pool& pool, const Indices& source, const Indices& target, int64_t count);

}  // namespace attnfuzz
