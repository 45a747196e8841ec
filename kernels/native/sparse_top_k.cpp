// Top-k by radix selection, as in SGLang's topk.cu and FlashInfer's topk.cuh: a histogram of 8 bits at a time finds the
// threshold, all above it are taken, and as many of those equal to it as are wanted.
#include <cstring>
#include <vector>

#include "element_values.h"
#include "sparse.h"

namespace attnfuzz {

namespace {

// Integers in the order of the numbers. NaN is the largest, and both zeros are equal.
uint32_t ordered(float value) {
  if (value != value) return planted(Defect::top_k_nan_is_lowest) ? 0 : 0xffffffffu;
  const uint32_t bits = bits_of(value + 0.0f);
  if (planted(Defect::top_k_negative_reversed)) return bits ^ 0x80000000u;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Threshold {
  uint32_t key;
  int64_t equal;  // how many of those equal to it are wanted
};

Threshold threshold_of(const std::vector<uint32_t>& keys, int64_t k) {
  uint32_t prefix = 0, mask = 0;
  int64_t histogram[256] = {};
  const int last = planted(Defect::top_k_by_16_bits) ? 16 : 0;
  for (int shift = 24; shift >= last; shift -= 8) {
    if (!planted(Defect::top_k_histogram_kept) || shift == 24) std::memset(histogram, 0, sizeof histogram);
    int64_t candidates = 0;
    for (uint32_t key : keys) {
      if ((key & mask) != prefix) continue;
      // Their buffer is full.
      if (planted(Defect::top_k_candidates_lost) && shift < 24 && ++candidates > 256) continue;
      ++histogram[key >> shift & 255];
    }
    int bin = 255;
    for (; bin > 0 && histogram[bin] < k; --bin) k -= histogram[bin];
    prefix |= static_cast<uint32_t>(bin) << shift;
    mask |= 255u << shift;
  }
  return {prefix, k};
}

}  // namespace

void top_k(const Scores& scores, Lengths starts, Lengths lengths, const Lists& out) {
  const int64_t k = out.length;
  for (int64_t r = 0; r < out.rows; ++r) {
    const int64_t start = starts.data && !planted(Defect::top_k_start_ignored) ? starts.at(r) : 0;
    int64_t length = lengths.at(planted(Defect::top_k_length_of_the_first_row) ? 0 : r);
    if (planted(Defect::top_k_length_of_the_batch)) {
      for (int64_t other = 0; other < out.rows; ++other) length = larger(length, lengths.at(other));
      length = smaller(length, scores.columns - start);
    }
    if (planted(Defect::top_k_whole_row)) length = scores.columns - start;
    int32_t* list = out.row(r);
    const float* row = scores.row(r) + start;
    int64_t count = 0;
    if (length <= k) {
      for (; count < length; ++count) list[count] = static_cast<int32_t>(count);
      if (planted(Defect::top_k_identity_absolute)) {
        for (int64_t i = 0; i < count; ++i) list[i] += static_cast<int32_t>(start);
      }
      if (planted(Defect::top_k_short_rows_unfilled)) continue;
      if (planted(Defect::top_k_short_rows_filled_with_0)) {
        for (; count < k; ++count) list[count] = 0;
      }
    } else {
      std::vector<uint32_t> keys(length);
      for (int64_t i = 0; i < length; ++i) keys[i] = ordered(row[i]);
      if (planted(Defect::top_k_tail_of_four_left_out)) keys.resize(length / 4 * 4);
      const Threshold threshold = threshold_of(keys, k);
      const uint32_t mask = planted(Defect::top_k_by_16_bits) ? 0xffff0000u : 0xffffffffu;
      const auto size = static_cast<int64_t>(keys.size());
      for (int64_t i = 0; i < size && count < k; ++i) {
        if ((keys[i] & mask) > threshold.key) list[count++] = static_cast<int32_t>(i);
      }
      for (int64_t i = 0; i < size && count < k && !planted(Defect::top_k_ties_left_out); ++i) {
        if ((keys[i] & mask) != threshold.key) continue;
        list[count++] = static_cast<int32_t>(i);
        if (planted(Defect::top_k_first_tie_again)) --i;
      }
      if (planted(Defect::top_k_one_tie_too_many) && threshold.equal > 1 && count == k) list[k - 1] = list[0];
    }
    for (; count < k; ++count) list[count] = -1;
  }
}

}  // namespace attnfuzz
