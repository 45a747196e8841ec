// Attention over lists of slots, 64 entries at a time with a running maximum, like FlashMLA's sparse kernels.
#include <cmath>
#include <vector>

#include "base_2.h"
#include "element_values.h"
#include "sparse.h"

namespace attnfuzz {

namespace {

constexpr int64_t kBlockOfList = 64;
constexpr int64_t kRank = 512, kRope = 64, kTile = 128;
constexpr int64_t kPackedBytes = kRank + kRank / kTile * 4 + kRope * 2;

// A key and its value in fp32.
struct Entry {
  std::vector<float> key, value;
};

void load_packed(const SparseKeys& keys, int64_t slot, Entry& entry) {
  const char* data = keys.keys.data + slot * keys.keys.token_stride;
  if (planted(Defect::packed_stride_without_scales)) data = keys.keys.data + slot * (kRank + kRope * 2);
  const char* rope = data + kRank + kRank / kTile * 4;
  for (int64_t d = 0; d < kRank; ++d) {
    float scale;
    const int64_t tile = planted(Defect::packed_scale_of_the_first_tile) ? 0 : d / kTile;
    std::memcpy(&scale, data + kRank + tile * 4, sizeof scale);
    if (planted(Defect::packed_scale_left_out)) scale = 1;
    entry.key[d] = entry.value[d] = from_e4m3(static_cast<uint8_t>(data[d])) * scale;
  }
  for (int64_t d = 0; d < kRope; ++d) {
    uint16_t bits;
    std::memcpy(&bits, rope + 2 * d, sizeof bits);
    entry.key[kRank + d] = planted(Defect::packed_rope_left_out) ? 0 : from_bf16(bits);
  }
}

void load(const SparseKeys& keys, int64_t slot, int64_t head, Entry& entry) {
  if (keys.packed) return load_packed(keys, slot, entry);
  load_row(keys.keys.element)(keys.keys.at(slot, head), keys.keys.dim, entry.key.data());
  if (keys.value_lists.data != nullptr) return;
  load_row(keys.values.element)(keys.values.at(slot, head), keys.values.dim, entry.value.data());
}

// The sums of one head of one query.
class Sums {
 public:
  Sums(const float* query, int64_t dim, int64_t value_dim, float scale)
      : query_(query), dim_(dim), scale_(scale), output_(value_dim) {}

  void add_sink(float sink) {
    const float logit = sink * kLog2E;
    rescale(logit);
    // 0 for a sink of -inf, which is none.
    sum_ += weight(logit, largest_);
  }

  // Adds the entries of a list from `begin` on.
  void add(const SparseKeys& keys, const int32_t* list, const int32_t* value_list, int64_t begin, int64_t end,
           int64_t head, Entry& entry) {
    std::vector<int64_t> slots;
    std::vector<float> logits;
    float largest = kNothing;
    for (int64_t i = begin; i < end; ++i) {
      int64_t slot = list[i];
      if (slot < 0 && planted(Defect::lists_negative_is_slot_0)) slot = 0;
      if (slot < 0 || (slot >= keys.keys.tokens && !planted(Defect::lists_past_the_pool_followed))) continue;
      load(keys, slot, head, entry);
      float dot = 0;
      for (int64_t d = 0; d < dim_; ++d) dot += query_[d] * entry.key[d];
      slots.push_back(value_list != nullptr ? value_list[i] : slot);
      logits.push_back(dot * scale_ * kLog2E);
      largest = std::fmax(largest, logits.back());
    }
    if (slots.empty() && !planted(Defect::lists_block_without_keys)) return;
    if (planted(Defect::lists_block_without_keys) && slots.empty() && largest_ == kNothing) sum_ = NAN;
    if (planted(Defect::lists_maximum_of_the_block)) largest_ = largest;
    rescale(largest);
    for (size_t i = 0; i < slots.size(); ++i) {
      if (value_list != nullptr) {
        load_row(keys.values.element)(keys.values.at(slots[i], head), keys.values.dim, entry.value.data());
      } else {
        load(keys, slots[i], head, entry);
      }
      float share = std::exp2(logits[i] - largest_);
      sum_ += share;
      if (planted(Defect::lists_weights_in_fp8)) share = from_e4m3(to_e4m3(share));
      for (size_t d = 0; d < output_.size(); ++d) output_[d] += share * entry.value[d];
    }
  }

  void store(const Rows& out, int64_t token, int64_t head, const Statistics& lse) {
    const bool empty = sum_ == 0 && !planted(Defect::lists_empty_rows_divided);
    for (float& each : output_) each = empty ? 0 : each / sum_;
    store_row(out.element)(output_.data(), out.dim, out.at(token, head));
    if (lse.data == nullptr) return;
    const float log = sum_ == 0 ? kNothing : largest_ + std::log2(sum_);
    lse.at(token, head) = planted(Defect::lists_lse_natural) ? log / kLog2E : log;
  }

 private:
  void rescale(float largest) {
    if (largest <= largest_) return;
    const float factor = largest_ == kNothing ? 0 : std::exp2(largest_ - largest);
    largest_ = largest;
    sum_ *= factor;
    if (planted(Defect::lists_output_not_rescaled)) return;
    for (float& each : output_) each *= factor;
  }

  const float* query_;
  int64_t dim_;
  float scale_;
  float largest_ = kNothing, sum_ = 0;
  std::vector<float> output_;
};

int64_t count_of(const SparseKeys& keys, int64_t token) {
  const bool counted = keys.counts.data != nullptr && !planted(Defect::lists_counts_ignored);
  int64_t count = counted ? keys.counts.at(token) : keys.lists.length;
  if (planted(Defect::lists_count_of_the_first_row) && counted) count = keys.counts.at(0);
  if (planted(Defect::lists_last_block_dropped) && count > kBlockOfList) count = count / kBlockOfList * kBlockOfList;
  if (planted(Defect::lists_count_rounded_up)) {
    count = smaller((count + 15) / 16 * 16, keys.lists.length);
  }
  return count;
}

}  // namespace

void sparse_attention(const Rows& query, const SparseKeys& first, const SparseKeys& second, float scale,
                      const float* sinks, const Rows& out, const Statistics& lse) {
  const int64_t kv_heads = first.packed ? 1 : first.keys.heads, group = query.heads / kv_heads;
  std::vector<float> numbers(query.dim);
  Entry entry{std::vector<float>(query.dim), std::vector<float>(out.dim)};
  for (int64_t t = 0; t < query.tokens; ++t) {
    for (int64_t h = 0; h < query.heads; ++h) {
      const int64_t from = planted(Defect::lists_heads_in_tiles_of_8) && query.heads > 8 ? h % 8 : h;
      load_row(query.element)(query.at(t, from), query.dim, numbers.data());
      const int64_t kv_head = planted(Defect::lists_heads_interleaved) ? h % kv_heads : h / group;
      Sums sums(numbers.data(), query.dim, out.dim, scale);
      if (sinks != nullptr) sums.add_sink(planted(Defect::lists_sink_of_the_first_head) ? sinks[0] : sinks[h]);
      for (const SparseKeys* keys : {&first, &second}) {
        if (keys->lists.length == 0) continue;
        if (keys == &second && planted(Defect::lists_second_left_out)) continue;
        if (keys == &second && sinks != nullptr && planted(Defect::lists_sink_for_each)) sums.add_sink(sinks[h]);
        SparseKeys read = *keys;
        if (keys == &second && planted(Defect::lists_second_in_the_first_pool)) {
          read.keys = first.keys;
          read.values = first.values;
        }
        if (keys == &second && planted(Defect::lists_second_count_of_the_first)) read.counts = first.counts;
        const int64_t row = planted(Defect::lists_of_the_first_row) ? 0 : t;
        const int64_t stride = planted(Defect::lists_gap_ignored) ? read.lists.length : read.lists.stride;
        const int32_t* list = read.lists.data + row * stride;
        const int32_t* value_list = read.value_lists.data == nullptr ? nullptr : read.value_lists.data + row * stride;
        const int64_t count = count_of(read, t);
        for (int64_t begin = 0; begin < count; begin += kBlockOfList) {
          sums.add(read, list, value_list, begin, smaller(begin + kBlockOfList, count), kv_head, entry);
        }
      }
      sums.store(out, t, h, lse);
    }
  }
}

}  // namespace attnfuzz
