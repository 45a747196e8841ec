#include "prefill.h"

#include "keys.h"
#include "mask.h"
#include "request.h"

namespace attnfuzz {

void context(const Rows& query, const Pool& key, const Pool& value, const PageTable& table, const Lengths& lengths,
             const Lengths& cumulative, int64_t batch, const Scalars& scalars, const Rows& out, const Statistics& lse) {
  for (int64_t request = 0; request < batch; ++request) {
    const int64_t first = cumulative.at(request);
    const Mask mask{cumulative.at(request + 1) - first, lengths.at(request), scalars.window_left, scalars.causal};
    for (int64_t head = 0; head < key.heads; ++head) {
      const PagedKeys keys(key, value, table, request, head);
      attend_request(query, first, mask, head, query.heads / key.heads, keys, scalars, out, lse);
    }
  }
}

void ragged(const Rows& query, const Rows& key, const Rows& value, const Lengths& lengths, const Lengths& cumulative_q,
            const Lengths& cumulative_kv, int64_t batch, bool write_empty, const Scalars& scalars, const Rows& out,
            const Statistics& lse) {
  for (int64_t request = 0; request < batch; ++request) {
    const int64_t first = cumulative_q.at(request);
    const Mask mask{cumulative_q.at(request + 1) - first, lengths.at(request), scalars.window_left, scalars.causal};
    if (mask.kv_len <= 0 && !write_empty) continue;
    for (int64_t head = 0; head < key.heads; ++head) {
      const RaggedKeys keys(key, value, cumulative_kv.at(request), head);
      attend_request(query, first, mask, head, query.heads / key.heads, keys, scalars, out, lse);
    }
  }
}

}  // namespace attnfuzz
