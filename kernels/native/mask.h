// The keys that a query sees: an interval, from causal limits and windows, minus the keys that a mask hides.
#pragma once

#include <cstdint>

#include "defects.h"
#include "portable.h"
#include "views.h"

namespace attnfuzz {

struct Interval {
  int64_t begin, end;  // empty unless begin < end
};

// One request. Its last query is aligned to its last key: with fewer keys than queries, the first queries have limits
// below zero and see nothing. With `bits`, query q sees key k if bit q * kv_len + k is set, counted from the lowest bit
// of each byte. With `intervals`, query q sees the keys of the interval of row `first_row` + q, as it is given, and no
// other field limits them.
struct Mask {
  int64_t q_len, kv_len;
  int64_t window_left, window_right;
  bool causal;
  Intervals intervals{};
  int64_t first_row = 0;
  const uint8_t* bits = nullptr;

  ON_BOTH Interval seen_by(int64_t query) const {
    if (intervals.first.data) return given(query);
    const int64_t own = kv_len - q_len + query;
    const int64_t begin = window_left < 0 ? 0 : larger(0, own - window_left);
    int64_t end = causal ? own + 1 : kv_len;
    if (ends_to_the_right()) end = own + 1 + smaller(right(), q_len + kv_len);
    return spoiled({begin, smaller(kv_len, end)}, query);
  }

  ON_BOTH bool ends_to_the_right() const {
    return !causal && window_right >= 0 && !planted(Defect::window_right_ignored);
  }

  ON_BOTH int64_t right() const {
    if (planted(Defect::window_left_on_both_sides)) return window_left;
    return planted(Defect::window_right_one_long) ? window_right + 1 : window_right;
  }

  ON_BOTH Interval given(int64_t query) const {
    const int64_t row = planted(Defect::interval_of_the_row_in_its_request) ? query : first_row + query;
    const int64_t end = intervals.last.at(row) + !planted(Defect::interval_without_its_last_key);
    return {intervals.first.at(row), end};
  }

  // Returns whether `query` sees a key of the interval that it may see.
  ON_BOTH bool shows(int64_t query, int64_t key) const {
    if (!bits) return true;
    int64_t place = query * kv_len + key;
    if (planted(Defect::custom_mask_transposed)) place = key * q_len + query;
    if (planted(Defect::custom_mask_rows_in_whole_bytes)) place = query * ((kv_len + 7) / 8 * 8) + key;
    const int64_t bit = planted(Defect::custom_mask_bits_reversed) ? 7 - place % 8 : place % 8;
    return bits[place / 8] >> bit & 1;
  }

  // The union over queries [first, last): the keys that they may read.
  ON_BOTH Interval seen_by(int64_t first, int64_t last) const {
    return {seen_by(first).begin, seen_by(last - 1).end};
  }

  // `seen`, changed by planted defects.
  ON_BOTH Interval spoiled(Interval seen, int64_t query) const {
    const int64_t own_of_first = kv_len - q_len, own = own_of_first + query;
    const auto window_at = [&](int64_t key) { return larger(0, key - window_left); };
    if (planted(Defect::mask_of_the_first_query) && query > 0) return seen_by(0);
    if (planted(Defect::mask_of_the_first_tile) && query >= 128) return seen_by(query % 128);
    if (causal) {
      if (planted(Defect::causal_limit_one_late)) seen.end = smaller(kv_len, own + 2);
      if (planted(Defect::causal_mask_from_the_first_key)) seen.end = smaller(kv_len, query + 1);
      if (planted(Defect::short_kv_sees_one_key) && kv_len > 0) seen.end = larger(1, seen.end);
    }
    if (window_left >= 0) {
      if (planted(Defect::window_one_short)) seen.begin = window_at(own + 1);
      if (planted(Defect::window_one_long)) seen.begin = window_at(own - 1);
      if (planted(Defect::window_of_the_first_query)) seen.begin = window_at(own_of_first);
      if (planted(Defect::window_from_a_tile_edge)) seen.begin -= seen.begin % 16;
      // key + window_left >= own, where the sum overflows.
      if (planted(Defect::window_sum_in_int32)) seen.end = smaller(seen.end, larger(0, INT32_MAX - window_left + 1));
    }
    return seen;
  }
};

// The mask of a request whose first row is `first_row`, without bits.
ON_BOTH inline Mask mask_of(const Scalars& scalars, int64_t q_len, int64_t kv_len, int64_t first_row) {
  return {q_len,          kv_len,            scalars.window_left, scalars.window_right,
          scalars.causal, scalars.intervals, first_row};
}

}  // namespace attnfuzz
