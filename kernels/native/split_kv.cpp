#include "split_kv.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "concurrently.h"
#include "defects.h"
#include "keys.h"
#include "mask.h"
#include "request.h"
#include "softmax_rows.h"

namespace attnfuzz {
namespace {

using Semaphore = std::atomic<uint32_t>;
static_assert(sizeof(Semaphore) == 4);

constexpr int64_t kKeysPerSplit = 32;
constexpr int64_t kMaxSplits = 8;
constexpr int64_t kMaxSemaphores = kSemaphoreBytes / static_cast<int64_t>(sizeof(Semaphore));

// The part of `all` that belongs to split number `split` of `splits`.
Interval share(Interval all, int64_t split, int64_t splits) {
  const int64_t rounding = planted(Defect::split_remainder_dropped) ? 0 : splits - 1;
  const int64_t keys = (std::max<int64_t>(0, all.end - all.begin) + rounding) / splits;
  const int64_t begin = all.begin + split * keys;
  return {begin, std::min(begin + keys, all.end)};
}

// `keys` rounded up to whole pages.
int64_t whole_pages(int64_t keys, int64_t page_size) { return (keys + page_size - 1) / page_size * page_size; }

}  // namespace

int64_t count_splits(int64_t max_seq_len, int64_t requests_times_kv_heads) {
  if (requests_times_kv_heads > kMaxSemaphores) return 1;
  return std::clamp<int64_t>((max_seq_len + kKeysPerSplit - 1) / kKeysPerSplit, 1, kMaxSplits);
}

int64_t scratch_bytes(int64_t batch, int64_t q_len, int64_t q_heads, int64_t kv_heads, int64_t value_dim,
                      int64_t max_seq_len) {
  const int64_t splits = count_splits(max_seq_len, batch * kv_heads);
  if (splits == 1) return 0;
  return splits * batch * q_len * q_heads * Partial::floats(value_dim) * static_cast<int64_t>(sizeof(float));
}

void decode(const Rows& query, const Pool& key, const Pool& value, char* workspace, const PageTable& table,
            const Lengths& lengths, int64_t batch, int64_t q_len, int64_t max_seq_len, const Scalars& scalars,
            const Rows& out, const Statistics& lse) {
  const int64_t group = query.heads / key.heads;
  const int64_t splits = count_splits(max_seq_len, batch * key.heads);
  auto* semaphores = reinterpret_cast<Semaphore*>(workspace);
  auto* scratch = reinterpret_cast<float*>(workspace + kSemaphoreBytes);

  const auto work = [&](int64_t unit) {
    const int64_t split = unit % splits, pair = unit / splits;
    const int64_t request = pair / key.heads, kv_head = pair % key.heads;
    Mask mask = mask_of(scalars, q_len, lengths.at(request), request * q_len);
    if (planted(Defect::last_page_read_whole)) mask.kv_len = whole_pages(mask.kv_len, key.page_size);
    const PagedKeys keys(key, value, table, request, kv_head);
    if (splits == 1) {
      attend_request(query, request * q_len, mask, kv_head, group, keys, scalars, out, lse);
      return;
    }
    const Interval heads = heads_of(kv_head, group, query.heads);
    const Block block{query, request * q_len, {0, q_len}, kv_head, heads, mask, keys, scalars.logit_scale};
    const int64_t floats = Partial::floats(value.dim);
    const int64_t stride = planted(Defect::partials_overlap) ? value.dim : floats;
    const int64_t part = block.rows() * stride;
    float* parts = scratch + (request * query.heads + heads.begin) * q_len * splits * stride;
    Interval seen = mask.seen_by(0, q_len);
    if (planted(Defect::masked_values_times_zero)) seen.end = whole_pages(seen.end, key.page_size);
    const Interval stretch = share(seen, split, splits);
    const bool unwritten = planted(Defect::empty_split_not_written) && stretch.begin >= stretch.end;
    if (!unwritten) attend(block, stretch, parts + split * part);
    if (planted(Defect::partials_in_bf16) && query.element != Element::f32) {
      for (int64_t i = 0; i < part; ++i) parts[split * part + i] = in_bf16(parts[split * part + i]);
    }

    const int64_t last = planted(Defect::merge_before_the_last_part) ? splits - 2 : splits - 1;
    if (semaphores[pair].fetch_add(1, std::memory_order_acq_rel) != last) return;
    if (!planted(Defect::semaphore_left_set)) semaphores[pair].store(0, std::memory_order_relaxed);
    const int64_t count = planted(Defect::last_split_dropped) ? splits - 1 : splits;
    for (int64_t row = 0; row < block.rows(); ++row) {
      const auto partial = [&](int64_t index) {
        if (planted(Defect::merge_in_order_of_arrival)) index = (split + index) % splits;
        return Partial{parts + index * part + row * floats};
      };
      const Partial merged = partial(0);
      const float unmerged = planted(Defect::lse_of_the_first_split) ? merged.max() + std::log2(merged.sum()) : 0.0f;
      for (int64_t other = 1; other < count; ++other) {
        merge(merged, partial(other), value.dim);
        if (planted(Defect::sink_in_every_split)) add_sink(merged, block, row, scalars);
      }
      finish(merged, block, row, scalars, out, lse);
      if (planted(Defect::lse_of_the_first_split) && lse.data) lse.at(block.token(row), block.head(row)) = unmerged;
    }
  };

  const int64_t units = batch * key.heads * splits;
  if (splits > 1) return run_concurrently(units, work);
  for (int64_t unit = 0; unit < units; ++unit) work(unit);
}

}  // namespace attnfuzz
