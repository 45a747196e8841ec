#include "split_kv.h"

#include <algorithm>
#include <atomic>

#include "concurrently.h"
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

// The share of split number `split` out of `splits` in `all`.
Interval share(Interval all, int64_t split, int64_t splits) {
  const int64_t keys = (std::max<int64_t>(0, all.end - all.begin) + splits - 1) / splits;
  const int64_t begin = all.begin + split * keys;
  return {begin, std::min(begin + keys, all.end)};
}

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
    const Mask mask{q_len, lengths.at(request), scalars.window_left, scalars.causal};
    const PagedKeys keys(key, value, table, request, kv_head);
    if (splits == 1) {
      attend_request(query, request * q_len, mask, kv_head, group, keys, scalars, out, lse);
      return;
    }
    const Block block{query, request * q_len, {0, q_len}, kv_head, group, mask, keys, scalars.logit_scale};
    const int64_t floats = Partial::floats(value.dim);
    const int64_t part = block.rows() * floats;
    float* parts = scratch + pair * splits * part;
    attend(block, share(mask.seen_by(0, q_len), split, splits), parts + split * part);

    if (semaphores[pair].fetch_add(1, std::memory_order_acq_rel) != splits - 1) return;
    semaphores[pair].store(0, std::memory_order_relaxed);
    for (int64_t row = 0; row < block.rows(); ++row) {
      const Partial merged{parts + row * floats};
      for (int64_t other = 1; other < splits; ++other) merge(merged, {parts + other * part + row * floats}, value.dim);
      finish(merged, request * q_len + row / group, kv_head * group + row % group, mask.kv_len, scalars, out, lse);
    }
  };

  const int64_t units = batch * key.heads * splits;
  if (splits > 1) return run_concurrently(units, work);
  for (int64_t unit = 0; unit < units; ++unit) work(unit);
}

}  // namespace attnfuzz
