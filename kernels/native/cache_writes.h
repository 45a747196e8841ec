// Writes of new tokens into a KV cache in pages, with the indices of FlashInfer, vLLM and SGLang. All of them trust
// their indices: a wrong one is a wild write (TRAPS.md). Tokens are written in order, so that of two tokens in one slot
// the last one stays. Offsets have 64 bits.
#pragma once

#include "indices.h"
#include "rope.h"
#include "views.h"

namespace attnfuzz {

// New tokens of K, of V or of a part of latents, and the pool that they belong to. Its dtype is that of the tokens, or
// e4m3: then it holds the tokens divided by `scale`, or by the pool's scales if it has them, rounded and saturated. With
// `computes`, the pool's scales are outputs: the largest magnitude in each head of each token over 448, and at least
// kLeastScale. So they are for a pool of e2m1: then `scale` is the one that all blocks have in common. With a `rope`,
// tokens are rotated before.
struct Write {
  Rows tokens;
  Pool pool;
  float scale = 1;
  bool computes = false;
  const Rope* rope = nullptr;
};

constexpr float kLeastScale = 1e-6f;

// Where FlashInfer's append puts tokens: at positions of requests, whose pages are ids[first[request]] and those after
// it.
struct Append {
  Indices requests, positions;  // of each token
  Indices ids, first;
};

// Token i goes to position positions[i] of request requests[i]. With `skip`, as in FlashInfer's fused kernel, tokens of
// a negative request are skipped.
void append(const Write* writes, int count, int64_t tokens, const Append& where, bool skip = false);

// Token i goes to slot slots[i] % page size of page slots[i] / page size. Tokens with a negative slot are skipped.
void reshape_and_cache(const Write* writes, int count, int64_t tokens, const Indices& slots);

// Token i goes to token slots[i] of the pool, which is one page. Tokens whose slot is `reserved` are skipped.
void store(const Write* writes, int count, int64_t tokens, const Indices& slots, int64_t reserved);

}  // namespace attnfuzz
