#include "rope.h"

#include <algorithm>
#include <cmath>

#include "defects.h"
#include "element_values.h"

namespace attnfuzz {

Rotator::Rotator(const Rope& rope) : rope_(rope), cosines_(rope.dim / 2), sines_(rope.dim / 2) {
  double theta = rope.theta;
  if (planted(Defect::rope_theta_of_10000)) theta = 10000;
  const double step = planted(Defect::rope_frequencies_half_as_far_apart) ? 1 : 2;
  for (int64_t i = 0; i < rope.dim / 2; ++i) {
    frequencies_.push_back(static_cast<float>(std::pow(theta, -step * static_cast<double>(i) / rope.dim)));
  }
}

void Rotator::turn_to(int64_t token) {
  int64_t position = rope_.positions.at(planted(Defect::rope_position_of_the_first_token) ? 0 : token);
  if (planted(Defect::rope_position_one_late)) ++position;
  if (planted(Defect::rope_row_one_early_at_page_edges) && position && position % rope_.page_size == 0) --position;
  const int64_t half = rope_.dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    if (rope_.table) {
      const float* row = rope_.table + position * rope_.table_stride;
      cosines_[i] = row[i];
      sines_[i] = row[planted(Defect::rope_sines_at_cosines) ? i : half + i];
    } else {
      auto factor = static_cast<float>(position);
      if (planted(Defect::rope_position_in_bf16)) factor = in_bf16(factor);
      const float angle = factor * frequencies_[i];
      cosines_[i] = std::cos(angle);
      sines_[i] = std::sin(angle);
    }
    if (planted(Defect::rope_table_in_bf16)) {
      cosines_[i] = in_bf16(cosines_[i]);
      sines_[i] = in_bf16(sines_[i]);
    }
    if (planted(Defect::rope_sine_negated)) sines_[i] = -sines_[i];
  }
}

void Rotator::pair(float* row, int64_t one, int64_t other, int64_t index) const {
  const float x = row[one], y = row[other];
  row[one] = x * cosines_[index] - y * sines_[index];
  // Computes the second of a pair from the first, which has already changed.
  const float first = planted(Defect::rope_second_from_the_rotated_first) ? row[one] : x;
  row[other] = y * cosines_[index] + first * sines_[index];
}

void Rotator::turn(float* row, int64_t width) const {
  const int64_t half = rope_.dim / 2;
  int64_t distance = half;
  if (planted(Defect::rope_halves_of_the_whole_head)) distance = width / 2;
  const bool neighbours = rope_.neighbours != planted(Defect::rope_pairing_swapped);
  float* first = row + (planted(Defect::rope_of_latents_first_elements) ? 0 : rope_.first);
  int64_t pairs = half;
  if (planted(Defect::rope_by_whole_vectors) && half > 8) pairs -= half % 8;
  for (int64_t i = 0; i < pairs; ++i) {
    if (neighbours) {
      pair(first, 2 * i, 2 * i + 1, i);
    } else {
      pair(first, i, i + distance, i);
    }
  }
  if (planted(Defect::rope_of_the_whole_head)) {
    for (int64_t i = rope_.dim; i + 1 < width - rope_.first; i += 2) pair(first, i, i + 1, i / 2 % half);
  }
}

void rotate(const Rows& rows, const Rows& out, int64_t tokens, const Rope& rope, float scale) {
  Rotator rotator(rope);
  const LoadRow load = load_row(rows.element);
  const StoreRow store = store_row(out.element);
  std::vector<float> values(rows.dim);
  int64_t heads = rows.heads;
  if (planted(Defect::rope_of_the_first_head) && heads > 1) heads = 1;
  for (int64_t token = 0; token < tokens; ++token) {
    rotator.turn_to(token);
    for (int64_t head = 0; head < rows.heads; ++head) {
      load(rows.at(token, head), rows.dim, values.data());
      if (head < heads) rotator.turn(values.data(), rows.dim);
      if (out.element != rows.element) {
        for (float& value : values) value /= scale;
      }
      store(values.data(), rows.dim, out.at(token, head));
    }
  }
}

}  // namespace attnfuzz
