// One row of attention (one query of a request, one head) by a team of threads: a block of a GPU, or in tests on a CPU
// one thread. An online softmax over tiles of keys, in fp32 and base 2, as in softmax_rows.h.
#pragma once

#include <cstdint>

#include "../../native/base_2.h"
#include "../../native/element_values.h"
#include "../../native/keys.h"
#include "../../native/mask.h"
#include "../../native/views.h"

#ifdef __CUDACC__
#define ON_GPU __device__
#else
#define ON_GPU
#endif

namespace attnfuzz {

// Keys per tile. Their addresses are looked up once for all threads.
constexpr int kKeys = 64;

// The requests of a call and their rows of `query`, `out` and `lse`. Metadata is read where the kernel runs.
struct Call {
  Rows query, out;
  Statistics lse;
  Scalars scalars;
  Lengths lengths;  // keys of each request
  Lengths starts;   // first row of each request, then the end; without data, each has `q_len` rows
  int64_t batch, q_len;
  int64_t group;  // query heads per KV head
  bool empty_left_alone;

  ON_GPU int64_t first_row(int64_t request) const { return starts.data ? starts.at(request) : request * q_len; }
  ON_GPU Mask mask(int64_t request) const {
    const int64_t rows = starts.data ? starts.at(request + 1) - starts.at(request) : q_len;
    return mask_of(scalars, rows, lengths.at(request), first_row(request));
  }
};

struct PagedCache {
  Pool key, value;
  PageTable table;

  ON_GPU PagedKeys keys(int64_t request, int64_t head) const { return {key, value, table, request, head}; }
};

struct RaggedCache {
  Rows key, value;
  Lengths starts;

  ON_GPU RaggedKeys keys(int64_t request, int64_t head) const { return {key, value, starts.at(request), head}; }
};

// Memory shared by a team's threads.
class Shared {
 public:
  static int64_t bytes(int64_t dim, int64_t value_dim) {
    return kKeys * (2 * sizeof(const char*) + sizeof(float)) + (dim + value_dim) * sizeof(float);
  }

  ON_GPU Shared(void* memory, int64_t dim)
      : key(static_cast<const char**>(memory)), value(key + kKeys), weights(reinterpret_cast<float*>(value + kKeys)),
        query(weights + kKeys), sum(query + dim) {}

  const char** const key;    // [kKeys]
  const char** const value;  // [kKeys]
  float* const weights;      // [kKeys]: first the logits
  float* const query;        // [dim]
  float* const sum;          // [value dim], of weighted values; each thread touches its own elements alone
};

ON_GPU inline float load(Element element, const char* row, int64_t index) {
  switch (element) {
    case Element::f32: return reinterpret_cast<const float*>(row)[index];
    case Element::bf16: return from_bf16(reinterpret_cast<const uint16_t*>(row)[index]);
    case Element::f16: return from_f16(reinterpret_cast<const uint16_t*>(row)[index]);
    case Element::e4m3: return from_e4m3(reinterpret_cast<const uint8_t*>(row)[index]);
    case Element::e2m1: return from_e2m1(reinterpret_cast<const uint8_t*>(row)[index / 2] >> index % 2 * 4 & 15);
  }
  return 0.0f;
}

// No kernel here has fp8 outputs, so e4m3 is missing.
ON_GPU inline void store(Element element, char* row, int64_t index, float value) {
  if (element == Element::f32) reinterpret_cast<float*>(row)[index] = value;
  if (element == Element::bf16) reinterpret_cast<uint16_t*>(row)[index] = to_bf16(value);
  if (element == Element::f16) reinterpret_cast<uint16_t*>(row)[index] = to_f16(value);
}

// The running maximum of a row's logits (times log2 e), and the sum of exponentials relative to it. Every thread of the
// team has the same copy.
struct Seen {
  float max = kNothing, sum = 0.0f;

  // Raises the maximum to `logit` if it is larger. Returns the factor for earlier sums.
  ON_GPU float raise(float logit) {
    if (!(logit > max)) return 1.0f;
    const float by = sum == 0.0f ? 1.0f : weight(max, logit);
    max = logit;
    sum *= by;
    return by;
  }
};

// Adds the keys [begin, begin + count), one tile at most.
template <typename Team, typename Keys>
ON_GPU void attend_tile(const Team& team, const Call& call, const Keys& keys, int64_t begin, int count,
                        const Shared& shared, Seen& seen) {
  // Wait until the previous tile is finished and the query is loaded.
  team.sync();
  for (int i = team.rank(); i < count; i += team.size()) {
    shared.key[i] = keys.key(begin + i);
    shared.value[i] = keys.value(begin + i);
  }
  team.sync();
  const float to_base_2 = call.scalars.logit_scale * kLog2E;
  for (int i = team.rank() / team.lanes(); i < count; i += team.size() / team.lanes()) {
    float dot = 0.0f;
    for (int64_t d = team.rank() % team.lanes(); d < call.query.dim; d += team.lanes()) {
      dot += shared.query[d] * load(keys.key_element, shared.key[i], d);
    }
    shared.weights[i] = team.sum_of_lanes(dot) * to_base_2;
  }
  team.sync();
  float top = kNothing;
  for (int i = 0; i < count; ++i) top = top < shared.weights[i] ? shared.weights[i] : top;
  const float by = seen.raise(top);
  team.sync();
  for (int i = team.rank(); i < count; i += team.size()) shared.weights[i] = weight(shared.weights[i], seen.max);
  team.sync();
  // Sum each tile separately: one running sum over 65,536 keys would swallow small weights.
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += shared.weights[i];
  seen.sum += sum;
  for (int64_t d = team.rank(); d < keys.value_dim; d += team.size()) {
    float values = 0.0f;
    for (int i = 0; i < count; ++i) values += shared.weights[i] * load(keys.value_element, shared.value[i], d);
    shared.sum[d] = shared.sum[d] * by + values;
  }
}

// Writes out = values / sum * output_scale and lse = max + log2(sum) of one row. A row without keys gives 0 and -inf
// (with a sink, the sink's logit); if its request's length is negative, 0 / 0.
template <typename Team, typename Keys>
ON_GPU void attend_row(const Team& team, const Call& call, const Keys& keys, const Mask& mask, int64_t first_row,
                       int64_t query, int64_t head, const Shared& shared) {
  const int64_t token = first_row + query;
  const Interval wanted = mask.seen_by(query);
  Seen seen;
  for (int64_t d = team.rank(); d < call.out.dim; d += team.size()) shared.sum[d] = 0.0f;
  if (wanted.begin < wanted.end) {
    const char* row = call.query.at(token, head);
    for (int64_t d = team.rank(); d < call.query.dim; d += team.size()) {
      shared.query[d] = load(call.query.element, row, d);
    }
  }
  for (int64_t begin = wanted.begin; begin < wanted.end; begin += kKeys) {
    const int count = static_cast<int>(smaller(kKeys, wanted.end - begin));
    attend_tile(team, call, keys, begin, count, shared, seen);
  }
  float by = 1.0f;
  if (call.scalars.sinks) {
    const float sink = call.scalars.sinks[head] * kLog2E;
    by = seen.raise(sink);
    seen.sum += weight(sink, seen.max);
  }
  const bool empty = seen.sum == 0.0f && mask.kv_len >= 0;
  by *= empty ? 0.0f : call.scalars.output_scale / seen.sum;
  char* row = call.out.at(token, head);
  for (int64_t d = team.rank(); d < call.out.dim; d += team.size()) store(call.out.element, row, d, shared.sum[d] * by);
  if (call.lse.data && team.rank() == 0) call.lse.at(token, head) = seen.max + log2f(seen.sum);
}

// Share number `share` of `shares` in the rows of a request, for one head.
template <typename Team, typename Cache>
ON_GPU void attend_share(const Team& team, const Call& call, const Cache& cache, int64_t request, int64_t share,
                         int64_t shares, int64_t head, const Shared& shared) {
  const Mask mask = call.mask(request);
  const int64_t first_row = call.first_row(request);
  if (mask.kv_len <= 0 && call.empty_left_alone) return;
  const auto keys = cache.keys(request, head / call.group);
  for (int64_t query = share; query < mask.q_len; query += shares) {
    attend_row(team, call, keys, mask, first_row, query, head, shared);
  }
}

}  // namespace attnfuzz
