// DeepSeek-V4's compressor of the indexer's keys, like vLLM's save_partial_states_cpu and
// compress_norm_rope_store_indexer_cpu (csrc/cpu/sgl-kernels/compressor.cpp).
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "element_values.h"
#include "sparse.h"

namespace attnfuzz {

namespace {

constexpr float kLargest = 448, kSmallestMagnitude = 1e-4f;
constexpr int64_t kOverlapping = 4;

}  // namespace

void save_states(const Scores& values, const Scores& scores, const Scores& embedding, Indices positions, Indices slots,
                 const Scores& states) {
  for (int64_t t = 0; t < values.rows; ++t) {
    const int64_t slot = slots.at(t);
    if (slot < 0) continue;
    const int64_t place = planted(Defect::compress_embedding_of_the_first) ? 0 : positions.at(t) % embedding.rows;
    float* row = states.row(slot);
    for (int64_t i = 0; i < values.columns; ++i) {
      row[i] = values.row(t)[i];
      row[values.columns + i] = scores.row(t)[i] + embedding.row(place)[i];
    }
  }
}

void compress(const Scores& states, const Windows& windows, Indices positions, Indices slots, const float* weight,
              float epsilon, const Scores& cos_sin, const IndexCache& cache, int64_t ratio) {
  const int64_t dim = cache.dim, width = states.columns / 2, half = dim / 2;
  std::vector<float> key(dim);
  for (int64_t t = 0; t < windows.rows; ++t) {
    const int64_t position = positions.at(t);
    if ((position + 1) % ratio != 0) continue;
    const int64_t slot = slots.at(t);
    if (slot < 0) continue;
    float squares = 0;
    for (int64_t d = 0; d < dim; ++d) {
      float largest = -std::numeric_limits<float>::infinity(), sum = 0, pooled = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (int64_t w = 0; w < windows.length; ++w) {
          int64_t from = windows.at(t, w);
          if (from < 0 && planted(Defect::compress_before_the_request)) from = 0;
          if (from < 0) continue;
          const bool second = w >= ratio && !planted(Defect::compress_first_part_alone);
          const float* row = states.row(from) + (second && ratio == kOverlapping ? dim : 0) + d;
          if (pass == 0) {
            largest = std::fmax(largest, row[width]);
            continue;
          }
          const float share = std::exp(row[width] - largest);
          sum += share;
          pooled += share * row[0];
        }
      }
      key[d] = pooled / sum;
      squares += key[d] * key[d];
    }
    const float scale = 1 / std::sqrt(squares / static_cast<float>(dim) + epsilon);
    for (int64_t d = 0; d < dim; ++d) {
      key[d] *= scale * (planted(Defect::compress_norm_weight_left_out) ? 1 : weight[d]);
    }
    const float* turn = cos_sin.row(planted(Defect::compress_rope_of_the_last) ? position : position / ratio * ratio);
    for (int64_t i = 0; i < half / 2; ++i) {
      const float even = key[half + 2 * i], odd = key[half + 2 * i + 1];
      key[half + 2 * i] = even * turn[i] - odd * turn[half / 2 + i];
      key[half + 2 * i + 1] = even * turn[half / 2 + i] + odd * turn[i];
    }
    float magnitude = kSmallestMagnitude;
    for (float& each : key) {
      each = from_bf16(to_bf16(each));
      magnitude = std::fmax(magnitude, std::fabs(each));
    }
    const float power = std::exp2(std::ceil(std::log2(magnitude / kLargest)));
    uint8_t* to = cache.key(slot / cache.page_size, slot % cache.page_size);
    for (int64_t d = 0; d < dim; ++d) to[d] = to_e4m3(key[d] / power);
    std::memcpy(cache.scale(slot / cache.page_size, slot % cache.page_size), &power, sizeof power);
  }
}

}  // namespace attnfuzz
