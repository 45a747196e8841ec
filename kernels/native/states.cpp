#include "states.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "defects.h"

namespace attnfuzz {
namespace {

// The weight of a state relative to one whose LSE is `max`.
float weight(float lse, float max) {
  if (planted(Defect::merge_clamps_weights)) lse = std::max(lse, max - 10);
  return planted(Defect::merge_in_base_e) ? std::exp(lse - max) : std::exp2(lse - max);
}

}  // namespace

void merge_state_in_place(const Rows& value, const Statistics& lse, const Rows& other, const Statistics& other_lse,
                          const uint8_t* mask) {
  const LoadRow load = load_row(value.element);
  const StoreRow store = store_row(value.element);
  std::vector<float> mine(value.dim), theirs(value.dim);
  for (int64_t token = 0; token < value.tokens; ++token) {
    if (mask && !mask[token]) continue;
    for (int64_t head = 0; head < value.heads; ++head) {
      float& my_lse = lse.at(token, head);
      const float their_lse = other_lse.at(token, head);
      const float max = std::max(my_lse, their_lse);
      const bool empty = max == -std::numeric_limits<float>::infinity();
      const float my_weight = empty ? 0.0f : weight(my_lse, max);
      const float their_weight = empty ? 0.0f : weight(their_lse, max);
      const float sum = my_weight + their_weight;
      float my_share = empty ? 0.0f : my_weight / sum;
      float their_share = empty ? 0.0f : their_weight / sum;
      if (planted(Defect::merge_swaps_shares)) std::swap(my_share, their_share);
      load(value.at(token, head), value.dim, mine.data());
      load(other.at(token, head), value.dim, theirs.data());
      for (int64_t i = 0; i < value.dim; ++i) mine[i] = my_share * mine[i] + their_share * theirs[i];
      store(mine.data(), value.dim, value.at(token, head));
      if (!planted(Defect::merge_keeps_lse)) my_lse = max + std::log2(sum);
    }
  }
}

void fixup_zero_kv_rows(const Rows& out, const Statistics& lse, const Lengths& lengths, const Lengths& cumulative,
                        int64_t batch, int64_t max_seq_len) {
  for (int64_t request = 0; request < batch; ++request) {
    if (lengths.at(request) != 0) continue;
    const int64_t first = planted(Defect::fixup_rows_at_a_stride) ? request * max_seq_len : cumulative.at(request);
    const int64_t grid = planted(Defect::fixup_half_a_grid) ? max_seq_len / 2 : max_seq_len;
    const int64_t last = std::min<int64_t>(cumulative.at(request + 1), first + grid);
    for (int64_t token = first; token < last; ++token) {
      for (int64_t head = 0; head < out.heads; ++head) {
        if (!planted(Defect::fixup_leaves_out)) std::memset(out.at(token, head), 0, out.dim * bytes(out.element));
        if (!planted(Defect::fixup_leaves_lse)) lse.at(token, head) = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

}  // namespace attnfuzz
