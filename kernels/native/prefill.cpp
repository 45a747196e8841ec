#include "prefill.h"

#include "keys.h"
#include "mask.h"
#include "request.h"

namespace attnfuzz {
namespace {

// Puts the mask of a request into `mask`.
void add_bits(Mask& mask, const PackedMasks& masks, int64_t request, const Lengths& lengths,
              const Lengths& cumulative) {
  if (planted(Defect::custom_mask_ignored)) return;
  int64_t start = masks.starts.at(request);
  if (planted(Defect::custom_mask_starts_in_bits)) {
    start = 0;
    for (int64_t b = 0; b < request; ++b) start += (cumulative.at(b + 1) - cumulative.at(b)) * lengths.at(b);
  }
  mask.causal = false;
  mask.bits = masks.bits + start;
  if (planted(Defect::custom_mask_instead_of_the_window)) mask.window_left = -1;
}

}  // namespace

void context(const Rows& query, const Pool& key, const Pool& value, const PageTable& table, const Lengths& lengths,
             const Lengths& cumulative, int64_t batch, const Scalars& scalars, const Rows& out, const Statistics& lse) {
  for (int64_t request = 0; request < batch; ++request) {
    const int64_t first = cumulative.at(request);
    Mask mask = mask_of(scalars, cumulative.at(request + 1) - first, lengths.at(request), first);
    if (scalars.masks.bits) add_bits(mask, scalars.masks, request, lengths, cumulative);
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
    const Mask mask = mask_of(scalars, cumulative_q.at(request + 1) - first, lengths.at(request), first);
    if (mask.kv_len <= 0 && !write_empty) continue;
    for (int64_t head = 0; head < key.heads; ++head) {
      const RaggedKeys keys(key, value, cumulative_kv.at(request), head);
      attend_request(query, first, mask, head, query.heads / key.heads, keys, scalars, out, lse);
    }
  }
}

}  // namespace attnfuzz
