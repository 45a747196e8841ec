#include "softmax_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "wide.h"

namespace attnfuzz {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kLanes = 16;

WIDE float dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
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
}

// exp2(value - max), where -inf - -inf is no weight at all.
float weight(float value, float max) { return value == kNothing ? 0.0f : std::exp2(value - max); }

// Raises the row's maximum to cover `max`, and rescales what it has summed.
void raise(Partial row, float max, int64_t dim) {
  if (!(max > row.max())) return;
  if (row.sum() != 0.0f) {
    const float by = weight(row.max(), max);
    row.sum() *= by;
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
  const int64_t dim = block.query.dim;
  tile.query.resize(std::max<size_t>(tile.query.size(), block.rows() * dim));
  const LoadRow load = load_row(block.query.element);
  float* to = tile.query.data();
  for (int64_t query = block.queries.begin; query < block.queries.end; ++query) {
    for (int64_t member = 0; member < block.group; ++member, to += dim) {
      load(block.query.at(block.first_row + query, block.kv_head * block.group + member), dim, to);
    }
  }
}

void load_keys(const Block& block, Interval keys) {
  const LoadRow load_key = load_row(block.keys.key_element);
  const LoadRow load_value = load_row(block.keys.value_element);
  for (int64_t index = keys.begin; index < keys.end; ++index) {
    const int64_t slot = index - keys.begin;
    load_key(block.keys.key(index), block.query.dim, tile.key.data() + slot * block.query.dim);
    load_value(block.keys.value(index), block.keys.value_dim, tile.value.data() + slot * block.keys.value_dim);
  }
}

// One row against keys [seen.begin, seen.end) of the tile, whose slot 0 is key `origin`.
void attend_row(const float* query, Interval seen, int64_t origin, const Block& block, Partial row) {
  const float to_base_2 = block.logit_scale * kLog2E;
  float logits[kTile];
  float max = kNothing;
  for (int64_t index = seen.begin; index < seen.end; ++index) {
    const int64_t slot = index - origin;
    logits[slot] = dot(query, tile.key.data() + slot * block.query.dim, block.query.dim) * to_base_2;
    max = std::max(max, logits[slot]);
  }
  raise(row, max, block.keys.value_dim);
  for (int64_t index = seen.begin; index < seen.end; ++index) {
    const int64_t slot = index - origin;
    const float probability = weight(logits[slot], row.max());
    row.sum() += probability;
    add_scaled(row.values(), tile.value.data() + slot * block.keys.value_dim, probability, block.keys.value_dim);
  }
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
  load_queries(block);
  tile.key.resize(std::max<size_t>(tile.key.size(), kTile * block.query.dim));
  tile.value.resize(std::max<size_t>(tile.value.size(), kTile * block.keys.value_dim));
  for (int64_t begin = stretch.begin; begin < stretch.end; begin += kTile) {
    const Interval keys{begin, std::min(begin + kTile, stretch.end)};
    load_keys(block, keys);
    for (int64_t row = 0; row < block.rows(); ++row) {
      const Interval all = block.mask.seen_by(block.queries.begin + row / block.group);
      const Interval seen{std::max(all.begin, keys.begin), std::min(all.end, keys.end)};
      if (seen.begin >= seen.end) continue;
      attend_row(tile.query.data() + row * block.query.dim, seen, begin, block, {partials + row * floats});
    }
  }
}

void merge(Partial into, Partial other, int64_t dim) {
  if (other.sum() == 0.0f) return;
  raise(into, other.max(), dim);
  const float by = weight(other.max(), into.max());
  into.sum() += by * other.sum();
  add_scaled(into.values(), other.values(), by, dim);
}

void finish(Partial row, int64_t token, int64_t head, int64_t kv_len, const Scalars& scalars, const Rows& out,
            const Statistics& lse) {
  if (scalars.sinks) {
    const float sink = scalars.sinks[head] * kLog2E;
    raise(row, sink, out.dim);
    row.sum() += weight(sink, row.max());
  }
  const bool empty = row.sum() == 0.0f && kv_len >= 0;
  scale(row.values(), empty ? 0.0f : scalars.output_scale / row.sum(), out.dim);
  store_row(out.element)(row.values(), out.dim, out.at(token, head));
  if (lse.data) lse.at(token, head) = row.max() + std::log2(row.sum());
}

}  // namespace attnfuzz
