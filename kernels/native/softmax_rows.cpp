#include "softmax_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base_2.h"
#include "wide.h"

namespace attnfuzz {
namespace {

constexpr int64_t kLanes = 16;

WIDE float dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  const int64_t end = planted(Defect::dot_tail_left_out) ? i : n;
  for (int64_t lane = 0; i < end; ++i, ++lane) lanes[lane] += a[i] * b[i];
  if (planted(Defect::dot_tail_twice) && n % kLanes) lanes[0] += a[n - 1] * b[n - 1];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

WIDE void scale(float* values, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] *= by;
}

WIDE void add_scaled(float* to, const float* from, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += by * from[i];
  if (planted(Defect::values_accumulated_in_bf16)) {
    for (int64_t i = 0; i < n; ++i) to[i] = in_bf16(to[i]);
  }
}

// Raises the row's maximum to at least `max`, and rescales its sums.
void raise(Partial row, float max, int64_t dim) {
  if (!(max > row.max())) return;
  const bool skipped = planted(Defect::small_growth_not_rescaled) && max - row.max() < 0.0625f;
  if (row.sum() != 0.0f && !skipped) {
    const float by = weight(row.max(), max);
    if (!planted(Defect::sum_not_rescaled)) row.sum() *= by;
    scale(row.values(), by, dim);
  }
  row.max() = max;
}

// Keys and values of a tile, and the block's queries, as fp32. Buffers live as long as their thread.
struct Tile {
  std::vector<float> query, key, value;
};

thread_local Tile tile;

void load_queries(const Block& block) {
  Rows query = block.query;
  if (planted(Defect::query_strides_ignored)) {
    query.token_stride = query.heads * query.dim;
    query.head_stride = query.dim;
  }
  tile.query.resize(std::max<size_t>(tile.query.size(), block.rows() * query.dim));
  const LoadRow load = load_row(query.element);
  for (int64_t row = 0; row < block.rows(); ++row) {
    load(query.at(block.token(row), block.head(row)), query.dim, tile.query.data() + row * query.dim);
  }
}

void load_keys(const Block& block, Interval keys) {
  const LoadRow load_key = load_row(block.keys.key_element);
  const LoadRow load_value = load_row(block.keys.value_element);
  for (int64_t index = keys.begin; index < keys.end; ++index) {
    const int64_t slot = index - keys.begin;
    float* key = tile.key.data() + slot * block.query.dim;
    float* value = tile.value.data() + slot * block.keys.value_dim;
    load_key(block.keys.key(index), block.query.dim, key);
    load_value(block.keys.value(index), block.keys.value_dim, value);
    block.keys.scale_key(index, key);
    block.keys.scale_value(index, value);
  }
}

// Attends one row, of query `index_of_query`, to keys [seen.begin, seen.end) of the tile, whose slot 0 is key `origin`.
void attend_row(const float* query, int64_t index_of_query, Interval seen, int64_t origin, const Block& block, Partial row) {
  const float log2_e = planted(Defect::log2_e_of_four_digits) ? 1.4427f : kLog2E;
  const bool coarse = planted(Defect::logit_scale_in_bf16);
  const float to_base_2 = (coarse ? in_bf16(block.logit_scale) : block.logit_scale) * log2_e;
  float logits[kTile];
  float max = kNothing, largest_product = kNothing;
  for (int64_t index = seen.begin; index < seen.end; ++index) {
    if (!block.mask.shows(index_of_query, index)) continue;
    const int64_t slot = index - origin;
    const float product = dot(query, tile.key.data() + slot * block.query.dim, block.query.dim);
    logits[slot] = product * to_base_2;
    max = std::max(max, logits[slot]);
    largest_product = std::max(largest_product, product);
  }
  if (planted(Defect::maximum_before_the_scale)) max = largest_product * to_base_2;
  raise(row, max, block.keys.value_dim);
  // Sum each tile separately: one running sum over 65,536 keys would swallow small weights.
  float sum = 0.0f;
  for (int64_t index = seen.begin; index < seen.end; ++index) {
    if (!block.mask.shows(index_of_query, index)) continue;
    const int64_t slot = index - origin;
    const bool natural = planted(Defect::natural_exponential) && max < row.max();
    float probability = natural ? std::exp(logits[slot] - row.max()) : weight(logits[slot], row.max());
    sum += probability;
    if (block.query.element != Element::f32) {
      if (planted(Defect::probabilities_truncated)) probability = cut_to_bf16(probability);
      if (planted(Defect::probabilities_in_bf16)) probability = in_bf16(probability);
    }
    if (planted(Defect::value_at_a_tile_edge_skipped) && index % 256 == 255) continue;
    add_scaled(row.values(), tile.value.data() + slot * block.keys.value_dim, probability, block.keys.value_dim);
  }
  const bool masks = seen.end < std::min(origin + kTile, block.mask.kv_len);
  if (planted(Defect::mask_before_the_scale) && masks) sum += weight(kNothing * to_base_2, row.max());
  row.sum() += sum;
}

}  // namespace

void attend(const Block& block, Interval stretch, float* partials) {
  const int64_t floats = Partial::floats(block.keys.value_dim);
  for (int64_t row = 0; row < block.rows(); ++row) {
    const Partial partial{partials + row * floats};
    partial.max() = kNothing;
    std::memset(&partial.sum(), 0, (floats - 1) * sizeof(float));
  }
  if (stretch.begin >= stretch.end) return;
  const int64_t count = stretch.end - stretch.begin;
  if (planted(Defect::last_odd_key_skipped) && count > 64) stretch.end -= count % 2;
  load_queries(block);
  tile.key.resize(std::max<size_t>(tile.key.size(), kTile * block.query.dim));
  tile.value.resize(std::max<size_t>(tile.value.size(), kTile * block.keys.value_dim));
  for (int64_t begin = stretch.begin; begin < stretch.end; begin += kTile) {
    const Interval keys{begin, std::min(begin + kTile, stretch.end)};
    load_keys(block, keys);
    for (int64_t row = 0; row < block.rows(); ++row) {
      const int64_t query = block.queries.begin + row / block.group();
      const Interval all = block.mask.seen_by(query);
      const Interval seen{std::max(all.begin, keys.begin), std::min(all.end, keys.end)};
      if (seen.begin >= seen.end) continue;
      const Partial partial{partials + row * floats};
      attend_row(tile.query.data() + row * block.query.dim, query, seen, begin, block, partial);
      for (int64_t key = seen.end; planted(Defect::masked_values_times_zero) && key < keys.end; ++key) {
        const float* value = tile.value.data() + (key - begin) * block.keys.value_dim;
        add_scaled(partial.values(), value, 0.0f, block.keys.value_dim);
      }
    }
  }
}

void merge(Partial into, Partial other, int64_t dim) {
  const bool unguarded = planted(Defect::empty_parts_merged);
  if (other.sum() == 0.0f && !unguarded) return;
  raise(into, other.max(), dim);
  const float by = unguarded ? std::exp2(other.max() - into.max()) : weight(other.max(), into.max());
  into.sum() += by * other.sum();
  add_scaled(into.values(), other.values(), by, dim);
}

float add_sink(Partial partial, const Block& block, int64_t row, const Scalars& scalars) {
  if (!scalars.sinks) return 0.0f;
  int64_t head = block.head(row);
  if (planted(Defect::sink_of_the_first_head_in_its_group)) head -= head % block.group();
  float sink = scalars.sinks[head] * kLog2E;
  if (planted(Defect::sink_scaled_as_a_logit)) sink *= scalars.logit_scale;
  raise(partial, sink, block.keys.value_dim);
  const float added = weight(sink, partial.max());
  partial.sum() += added;
  return added;
}

void finish(Partial partial, const Block& block, int64_t row, const Scalars& scalars, const Rows& out,
            const Statistics& lse) {
  const int64_t token = block.token(row), head = block.head(row);
  const float sink = add_sink(partial, block, row, scalars);
  float divisor = planted(Defect::sink_missing_from_output) ? partial.sum() - sink : partial.sum();
  const bool empty = divisor == 0.0f && block.mask.kv_len >= 0 && !planted(Defect::empty_rows_divided_by_zero);
  if (planted(Defect::denominator_plus_epsilon)) divisor += 1e-6f;
  const float by = planted(Defect::output_scale_in_bf16) ? in_bf16(scalars.output_scale) : scalars.output_scale;
  scale(partial.values(), empty ? 0.0f : by / divisor, out.dim);
  store_row(out.element)(partial.values(), out.dim, out.at(token, head));
  if (planted(Defect::last_vector_stored_whole)) {
    std::memset(out.at(token, head) + out.dim * bytes(out.element), 0, (16 - out.dim % 16) % 16 * bytes(out.element));
  }
  const float total = planted(Defect::sink_missing_from_lse) ? partial.sum() - sink : partial.sum();
  if (lse.data) lse.at(token, head) = partial.max() + std::log2(total);
}

}  // namespace attnfuzz
