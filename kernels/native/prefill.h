// Attention of requests with individual lengths, packed one after the other.
#pragma once

#include "views.h"

namespace attnfuzz {

// On paged keys. Request b has the rows between cumulative[b] and cumulative[b + 1]; no other row is written.
void context(const Rows& query, const Pool& key, const Pool& value, const PageTable& table, const Lengths& lengths,
             const Lengths& cumulative, int64_t batch, const Scalars& scalars, const Rows& out, const Statistics& lse);

// On packed keys, those of request b from row cumulative_kv[b] on. Rows of a request without keys stay unwritten,
// unless `write_empty`.
void ragged(const Rows& query, const Rows& key, const Rows& value, const Lengths& lengths, const Lengths& cumulative_q,
            const Lengths& cumulative_kv, int64_t batch, bool write_empty, const Scalars& scalars, const Rows& out,
            const Statistics& lse);

}  // namespace attnfuzz
