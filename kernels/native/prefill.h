// Attention of requests with individual lengths, packed one after the other.
#pragma once

#include "views.h"

namespace attnfuzz {

// Attends to paged keys. Request b has rows cumulative[b] to cumulative[b + 1]; no other row is written.
void context(const Rows& query, const Pool& key, const Pool& value, const PageTable& table, const Lengths& lengths,
             const Lengths& cumulative, int64_t batch, const Scalars& scalars, const Rows& out, const Statistics& lse);

// Attends to packed keys; the keys of request b begin at row cumulative_kv[b]. Rows of a request without keys stay
// unwritten, unless `write_empty`.
void ragged(const Rows& query, const Rows& key, const Rows& value, const Lengths& lengths, const Lengths& cumulative_q,
            const Lengths& cumulative_kv, int64_t batch, bool write_empty, const Scalars& scalars, const Rows& out,
            const Statistics& lse);

}  // namespace attnfuzz
