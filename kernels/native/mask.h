// Which keys a query sees: an interval, since causal limits and windows are intervals.
#pragma once

#include <algorithm>
#include <cstdint>

#include "views.h"

namespace attnfuzz {

struct Interval {
  int64_t begin, end;  // empty unless begin < end
};

// One request: its last query is aligned to its last key, so that with fewer keys than queries the first queries have
// limits below zero and see nothing.
struct Mask {
  int64_t q_len, kv_len;
  int64_t window_left;
  bool causal;

  Interval seen_by(int64_t query) const {
    const int64_t own = kv_len - q_len + query;
    const int64_t begin = window_left < 0 ? 0 : std::max<int64_t>(0, own - window_left);
    return {begin, std::min(kv_len, causal ? own + 1 : kv_len)};
  }

  // The union over queries [first, last): what these queries may read.
  Interval seen_by(int64_t first, int64_t last) const {
    return {seen_by(first).begin, seen_by(last - 1).end};
  }
};

}  // namespace attnfuzz
