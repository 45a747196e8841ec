// All rows of one request and one KV head, computed by one thread: attention without split KV.
#pragma once

#include "keys.h"
#include "mask.h"
#include "views.h"

namespace attnfuzz {

// `first_row` is the row of `query`, `out` and `lse` of query 0 of the request.
void attend_request(const Rows& query, int64_t first_row, const Mask& mask, int64_t kv_head, int64_t group,
                    const Keys& keys, const Scalars& scalars, const Rows& out, const Statistics& lse);

}  // namespace attnfuzz
