// Writes into the indexer's cache, like vLLM's indexer_k_quant_and_cache (csrc/cache_kernels.cu).
#include <cmath>
#include <vector>

#include "element_values.h"
#include "sparse.h"

namespace attnfuzz {

namespace {

constexpr float kLargest = 448, kSmallestMagnitude = 1e-4f;

float scale_of(const std::vector<float>& key, bool powers) {
  float magnitude = 0;
  const size_t seen = planted(Defect::index_magnitude_of_the_first_half) ? key.size() / 2 : key.size();
  for (size_t d = 0; d < seen; ++d) {
    magnitude = std::fmax(magnitude, planted(Defect::index_magnitude_with_sign) ? key[d] : std::fabs(key[d]));
  }
  if (!planted(Defect::index_magnitude_unbounded)) magnitude = std::fmax(magnitude, kSmallestMagnitude);
  const float scale = magnitude / (planted(Defect::index_scale_by_240) ? 240 : kLargest);
  if (!powers) return scale;
  const float exponent = std::log2(scale);
  return std::exp2(planted(Defect::index_power_rounded_down) ? std::floor(exponent) : std::ceil(exponent));
}

}  // namespace

void write_index_keys(const Rows& keys, Indices slots, const IndexCache& cache, bool powers) {
  std::vector<float> key(keys.dim);
  for (int64_t t = 0; t < keys.tokens; ++t) {
    int64_t slot = slots.at(t);
    if (slot < 0 && planted(Defect::index_negative_slot_is_0)) slot = 0;
    if (slot < 0) continue;
    load_row(keys.element)(keys.at(t, 0), keys.dim, key.data());
    float scale = scale_of(key, powers);
    const int64_t page = slot / cache.page_size, of_page = slot % cache.page_size;
    uint8_t* to = cache.key(page, of_page);
    for (int64_t d = 0; d < keys.dim; ++d) to[d] = to_e4m3(key[d] / scale);
    if (planted(Defect::index_scale_inverted)) scale = 1 / scale;
    if (planted(Defect::index_scale_unrounded) && powers) scale = scale_of(key, false);
    if (planted(Defect::index_scale_of_a_page_once) && of_page % 4 != 0) continue;
    char* place = cache.scale(page, of_page);
    if (planted(Defect::index_scale_stored_behind_each_key)) {
      place = reinterpret_cast<char*>(cache.key(page, 0)) + of_page * (cache.dim + 4) + cache.dim;
    }
    std::memcpy(place, &scale, sizeof scale);
  }
}

}  // namespace attnfuzz
