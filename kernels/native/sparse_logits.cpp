// The indexer's scores (DeepSeek-V3.2-Exp, equation 1): sum over heads of weight * relu(q . k), times the key's scale.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "element_values.h"
#include "sparse.h"

namespace attnfuzz {

namespace {

constexpr float kOutside = -std::numeric_limits<float>::infinity();

// Numbers of all e4m3 codes: a product with a table is twice as fast as converting each element.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> made{};
    for (int code = 0; code < 256; ++code) made[code] = from_e4m3(static_cast<uint8_t>(code));
    return made;
  }();
  return values;
}

// One query's heads in fp32, with their weights.
class IndexQuery {
 public:
  IndexQuery(const IndexQueries& queries, int64_t token, int64_t weights_of)
      : heads_(queries.rows.heads), dim_(queries.rows.dim), values_(heads_ * dim_), weights_(heads_) {
    const std::array<float, 256>& values = e4m3_values();
    for (int64_t h = 0; h < heads_; ++h) {
      const auto* codes = reinterpret_cast<const uint8_t*>(queries.rows.at(token, h));
      for (int64_t d = 0; d < dim_; ++d) values_[h * dim_ + d] = values[codes[d]];
      weights_[h] = queries.weights.at(weights_of, h);
      if (planted(Defect::index_weights_in_bf16)) weights_[h] = in_bf16(weights_[h]);
    }
  }

  float score(const uint8_t* key, float scale) const {
    const std::array<float, 256>& values = e4m3_values();
    std::vector<float> numbers(dim_);
    for (int64_t d = 0; d < dim_; ++d) numbers[d] = values[key[d]];
    const int64_t heads = heads_ - (planted(Defect::index_last_head_left_out) && heads_ > 1);
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) {
      float product = dot(&values_[h * dim_], numbers.data());
      if (planted(Defect::index_products_in_bf16)) product = in_bf16(product);
      const bool kept = product > 0 || product != product || planted(Defect::index_relu_left_out) ||
                        planted(Defect::index_relu_of_the_sum);
      if (kept) sum += weights_[h] * product;
    }
    if (planted(Defect::index_relu_of_the_sum) && sum < 0) sum = 0;
    return sum * scale;
  }

 private:
  // Eight sums, which fit a vector of floats.
  float dot(const float* query, const float* key) const {
    float sums[8] = {};
    int64_t d = 0;
    for (; d + 8 <= dim_; d += 8) {
      for (int i = 0; i < 8; ++i) sums[i] += query[d + i] * key[d + i];
    }
    if (!planted(Defect::index_dims_tail_left_out)) {
      for (; d < dim_; ++d) sums[0] += query[d] * key[d];
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  }

  int64_t heads_, dim_;
  std::vector<float> values_, weights_;
};

float outside() { return planted(Defect::index_zero_outside) ? 0.0f : kOutside; }

}  // namespace

void dense_logits(const IndexQueries& queries, const Rows& keys, const float* scales, Lengths starts, Lengths ends,
                  const Scores& logits) {
  for (int64_t r = 0; r < logits.rows; ++r) {
    const IndexQuery query(queries, r, r);
    int64_t first = starts.at(planted(Defect::index_start_of_the_first_row) ? 0 : r), end = ends.at(r);
    if (planted(Defect::index_end_inclusive)) end = smaller(end + (end > first), logits.columns);
    if (planted(Defect::index_before_the_start)) first = 0;
    if (planted(Defect::index_last_key_left_out) && end > first) --end;
    float* row = logits.row(r);
    for (int64_t i = 0; i < logits.columns; ++i) {
      if (i < first || i >= end) {
        row[i] = outside();
        continue;
      }
      row[i] = query.score(reinterpret_cast<const uint8_t*>(keys.at(i, 0)),
                           scales[planted(Defect::index_scale_of_the_row) ? r : i]);
    }
  }
}

void paged_logits(const IndexQueries& queries, const IndexCache& cache, int64_t next_n, Lengths lengths, int64_t batch,
                  const PageTable& table, const Scores& logits) {
  if (planted(Defect::index_schedule_of_no_keys)) {
    // The schedule looks for a request with keys, and none ends it.
    volatile int64_t first = 0;
    while (lengths.at(first) == 0) first = first + 1;
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t j = 0; j < next_n; ++j) {
      const int64_t r = b * next_n + j;
      const IndexQuery query(queries, r, planted(Defect::index_weights_of_the_first_draft) ? b * next_n : r);
      const int64_t of = planted(Defect::index_lengths_by_row) ? smaller(r, batch - 1) : b;
      int64_t end = lengths.at(of);
      if (!planted(Defect::index_drafts_see_all)) end = larger(end - next_n + 1 + j, 0);
      if (planted(Defect::index_last_key_left_out) && end > 0) --end;
      float* row = logits.row(r);
      if (planted(Defect::index_empty_rows_unwritten) && end == 0) continue;
      if (planted(Defect::index_last_page_whole)) {
        end = smaller((end + cache.page_size - 1) / cache.page_size * cache.page_size, logits.columns);
      }
      for (int64_t i = 0; i < logits.columns; ++i) {
        if (i >= end) {
          row[i] = outside();
          continue;
        }
        int64_t at = i;
        if (planted(Defect::index_past_2048) && i >= 2048) at = i % 2048;
        const int64_t width = planted(Defect::index_table_gap_ignored) ? (logits.columns + cache.page_size - 1) /
                                                                             cache.page_size
                                                                       : table.row_stride;
        const int64_t page = table.data[b * width + at / cache.page_size * table.column_stride];
        const int64_t slot = at % cache.page_size;
        const char* place = cache.scale(page, slot);
        if (planted(Defect::index_scale_of_the_first_slot)) place = cache.scale(page, 0);
        if (planted(Defect::index_scale_of_the_first_page)) place = cache.scale(table.data[b * width], slot);
        if (planted(Defect::index_scale_behind_each_key)) {
          place = reinterpret_cast<const char*>(cache.key(page, 0)) + slot * (cache.dim + 4) + cache.dim;
        }
        float scale;
        std::memcpy(&scale, place, sizeof scale);
        row[i] = query.score(cache.key(page, slot), scale);
      }
    }
  }
}

}  // namespace attnfuzz
