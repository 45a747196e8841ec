// Writes of new tokens into a paged KV cache, with the indices of FlashInfer, vLLM and SGLang. All of them trust their
// indices: a wrong index is a wild write (TRAPS.md). Tokens are written in order: if two have the same slot, the last
// one stays. Offsets have 64 bits.
#pragma once

#include "indices.h"
#include "rope.h"
#include "views.h"

namespace attnfuzz {

// New tokens of K, of V or of a part of latents, and the pool that they belong to. The pool has the dtype of the
// tokens, or e4m3: then it holds the tokens divided by `scale`, or by the pool's scales if it has them, rounded and
// saturated. With `computes`, the pool's scales are outputs: the largest magnitude in each head of each token over 448,
// and at least kLeastScale. They are outputs for a pool of e2m1, too: then `scale` is the factor that all blocks share.
// With a `rope`, tokens are rotated first.
struct Write {
  Rows tokens;
  Pool pool;
  float scale = 1;
  bool computes = false;
  const Rope* rope = nullptr;
};

constexpr float kLeastScale = 1e-6f;

// Where FlashInfer's append puts tokens: at positions of requests. The pages of a request begin at
// ids[first[request]].
struct Append {
  Indices requests, positions;  // of each token
  Indices ids, first;
};

// Token i goes to position positions[i] of request requests[i]. With `skip`, as in FlashInfer's fused kernel, tokens of
// a negative request are skipped.
void append(const Write* writes, int count, int64_t tokens, const Append& where, bool skip = false);

// Token i goes to slot slots[i] % page size of page slots[i] / page size. Tokens with a negative slot are skipped.
void reshape_and_cache(const Write* writes, int count, int64_t tokens, const Indices& slots);

// Token i goes to slot slots[i] of the pool, which is one page. Tokens whose slot is `reserved` are skipped.
void store(const Write* writes, int count, int64_t tokens, const Indices& slots, int64_t reserved);

}  // namespace attnfuzz
