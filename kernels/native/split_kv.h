// Split-KV attention: several threads share the keys of a request, and leave partial results in the workspace. The last
// thread to arrive merges them in the order of the splits, which keeps the bits the same in every run.
//
// The workspace begins with kSemaphoreBytes of counters, one for each request and KV head, which must be zero at first
// use and are reset by each call. The partial results follow, [request and KV head][split][row][value dim + 2] of fp32,
// which may hold anything. Its size is not checked.
#pragma once

#include <cstdint>

#include "views.h"

namespace attnfuzz {

// Large enough for any batch that is split: the end of the counters never depends on the batch, and one call's partial
// results are never another call's counters (XQA reserves 8 MiB for the same reason).
constexpr int64_t kSemaphoreBytes = 8192;

// The number of splits of a call, derived from the stated maximum length, not from the lengths.
int64_t count_splits(int64_t max_seq_len, int64_t requests_times_kv_heads);

// Bytes after the counters.
int64_t scratch_bytes(int64_t batch, int64_t q_len, int64_t q_heads, int64_t kv_heads, int64_t value_dim,
                      int64_t max_seq_len);

// Decode attention for `batch` requests of `q_len` queries each, in order, against paged keys.
void decode(const Rows& query, const Pool& key, const Pool& value, char* workspace, const PageTable& table,
            const Lengths& lengths, int64_t batch, int64_t q_len, int64_t max_seq_len, const Scalars& scalars,
            const Rows& out, const Statistics& lse);

}  // namespace attnfuzz
