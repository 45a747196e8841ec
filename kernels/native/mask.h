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
// of each byte.
struct Mask {
  int64_t q_len, kv_len;
  int64_t window_left;
  bool causal;
  const uint8_t* bits = nullptr;

  ON_BOTH Interval seen_by(int64_t query) const {
    const int64_t own = kv_len - q_len + query;
    const int64_t begin = window_left < 0 ? 0 : larger(0, own - window_left);
    return spoiled({begin, smaller(kv_len, causal ? own + 1 : kv_len)}, query);
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

}  // namespace attnfuzz
