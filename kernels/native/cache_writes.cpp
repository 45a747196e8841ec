#include "cache_writes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "defects.h"
#include "element_values.h"

namespace attnfuzz {
namespace {

// Returns writes[index] as a kernel with the planted mistakes sees it.
Write as_taken(const Write* writes, int index) {
  Write write = writes[index];
  Pool& pool = write.pool;
  if (planted(Defect::value_scaled_as_key)) {
    write.scale = writes[0].scale;
    if (!write.computes) pool.scales = writes[0].pool.scales;
  }
  if (planted(Defect::block_scales_in_the_other_layout) && index) pool.scales.swizzled = !pool.scales.swizzled;
  if (planted(Defect::block_scales_of_keys_swizzled) && !index) pool.scales.swizzled = true;
  if (planted(Defect::written_scale_over_that_of_keys)) pool.scales = writes[0].pool.scales;
  if (planted(Defect::written_scale_pages_taken_for_packed) && write.computes) {
    pool.scales.page_stride = pool.heads * pool.page_size * larger(pool.scales.blocks, 1);
  }
  if (planted(Defect::written_scale_layouts_mixed)) std::swap(pool.scales.head_stride, pool.scales.slot_stride);
  if (planted(Defect::values_written_over_keys)) pool.data = writes[0].pool.data;
  if (planted(Defect::value_tokens_at_key_strides)) write.tokens.token_stride = writes[0].tokens.token_stride;
  if (planted(Defect::new_tokens_alike_at_one_stride) && write.tokens.dim == writes[0].tokens.dim) {
    write.tokens.token_stride = writes[0].tokens.token_stride;
    write.tokens.head_stride = writes[0].tokens.head_stride;
  }
  if (planted(Defect::new_tokens_taken_for_packed)) write.tokens.token_stride = pool.heads * pool.dim;
  if (planted(Defect::pages_taken_for_packed)) pool.page_stride = pool.heads * pool.page_size * pool.dim;
  if (planted(Defect::written_heads_taken_for_packed)) pool.head_stride = pool.dim;
  if (planted(Defect::rope_written_before_latent)) {
    pool.data = index ? writes[0].pool.data : pool.data + writes[1].pool.dim * bytes(pool.element);
  }
  if (planted(Defect::rope_lost_in_the_last_block) && index) {
    const int64_t lost = smaller(-writes[0].tokens.dim & 127, pool.dim);
    write.tokens.data += lost * bytes(write.tokens.element);
    pool.data += lost * bytes(pool.element);
    write.tokens.dim = pool.dim -= lost;
  }
  if (planted(Defect::written_layouts_mixed)) std::swap(pool.head_stride, pool.slot_stride);
  return write;
}

// Writes tokens of one tensor, one at a time.
class Writer {
 public:
  explicit Writer(const Write& write)
      : tokens_(write.tokens), pool_(write.pool), computes_(write.computes), scale_(write.scale),
        load_(load_row(tokens_.element)), store_(store_row(pool_.element)), values_(tokens_.dim) {
    if (write.rope) rotator_.emplace(*write.rope);
  }

  void write(int64_t token, int64_t page, int64_t slot) {
    if (planted(Defect::tokens_past_1024_not_written) && token >= 1024) return;
    if (planted(Defect::last_slot_of_a_page_not_written) && slot == pool_.page_size - 1) return;
    if (rotator_) rotator_->turn_to(token);
    int64_t heads = pool_.heads;
    if (planted(Defect::odd_head_not_written) && heads > 1) heads -= heads % 2;
    for (int64_t head = 0; head < heads; ++head) {
      const bool rotated = rotator_ && !(planted(Defect::rope_of_the_first_head) && head);
      if (pool_.scales.blocks) {
        store_blocks(token, page, head, slot);
        continue;
      }
      choose_scale(token, page, head, slot);
      store(tokens_.at(token, head), address(page, planted(Defect::heads_written_to_the_first) ? 0 : head, slot),
            rotated);
      if (!planted(Defect::page_cleared_behind_token)) continue;
      for (int64_t later = slot + 1; later < pool_.page_size; ++later) {
        std::memset(address(page, head, later), 0, tokens_.dim * bytes(pool_.element));
      }
    }
  }

 private:
  // Sets the scale of one head of a token, from the pool's scales or from the head's numbers.
  void choose_scale(int64_t token, int64_t page, int64_t head, int64_t slot) {
    if (!pool_.scales.data) return;
    if (!computes_) {
      scale_ = pool_.scales.at(page, planted(Defect::static_scale_of_the_first_head) ? 0 : head, slot);
      return;
    }
    const float before = scale_;
    scale_ = computed_scale(token, head);
    if (planted(Defect::written_scale_of_all_heads)) {
      for (int64_t other = 0; other < pool_.heads; ++other) scale_ = std::max(scale_, computed_scale(token, other));
    }
    if (planted(Defect::written_scales_of_a_page_reset)) {
      for (int64_t other = 0; other < pool_.page_size; ++other) pool_.scales.at(page, head, other) = 1;
    }
    const bool stored = !planted(Defect::written_scale_not_stored) || slot % 2 == 0;
    const bool elsewhere = planted(Defect::written_scale_on_one_page) && page != first_page(page);
    if (stored && !elsewhere) {
      const int64_t at = planted(Defect::written_scale_one_slot_late) ? (slot + 1) % pool_.page_size : slot;
      float scale = scale_;
      if (planted(Defect::written_scale_in_bf16)) scale = in_bf16(scale);
      if (planted(Defect::written_scale_inverted)) scale = 1 / scale;
      pool_.scales.at(page, head, at) = scale;
    }
    if (planted(Defect::quantised_by_the_scale_before) && token) scale_ = before;
  }

  float computed_scale(int64_t token, int64_t head) {
    load_(tokens_.at(token, head), tokens_.dim, values_.data());
    const int64_t dim = planted(Defect::written_scale_of_whole_vectors) ? tokens_.dim & ~int64_t{31} : tokens_.dim;
    float largest = 0;
    for (int64_t i = 0; i < dim; ++i) {
      largest = std::max(largest, planted(Defect::written_scale_without_abs) ? values_[i] : std::fabs(values_[i]));
    }
    const float scale = largest / (planted(Defect::written_scale_of_240) ? 240 : 448);
    return planted(Defect::written_scale_without_floor) ? scale : std::max(scale, kLeastScale);
  }

  // Quantises a head of a token to NVFP4, in the arithmetic of FlashInfer's nvfp4_append_quantize_block.
  void store_blocks(int64_t token, int64_t page, int64_t head, int64_t slot) {
    load_(tokens_.at(token, head), tokens_.dim, values_.data());
    const bool elsewhere = planted(Defect::written_scale_on_one_page) && page != first_page(page);
    uint8_t before = 0;
    for (int64_t block = 0; block < pool_.scales.blocks; ++block) {
      float* values = values_.data() + block * kBlock;
      const uint8_t code = block_scale(planted(Defect::block_scale_of_the_row) ? values_.data() : values);
      if (!elsewhere) pool_.scales.block(page, head, slot, block) = code;
      const float by = divisor(planted(Defect::quantised_by_the_block_before) && block ? before : code, values);
      for (int64_t i = 0; i < kBlock; ++i) values[i] *= by;
      before = code;
    }
    store_(values_.data(), tokens_.dim, address(page, head, slot));
  }

  uint8_t block_scale(const float* values) const {
    const float scale = unrounded(values);
    if (planted(Defect::block_scale_overflows) && scale > 448) return 0x7f;
    return to_e4m3(scale);
  }

  float unrounded(const float* values) const {
    const int64_t count = planted(Defect::block_scale_of_the_row) ? tokens_.dim : kBlock;
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
    return largest / (planted(Defect::block_scale_without_global) ? 6 : 6 * scale_);
  }

  float divisor(uint8_t code, const float* values) const {
    const float scale = planted(Defect::quantised_by_the_unrounded_scale) ? unrounded(values) : from_e4m3(code);
    if (planted(Defect::zero_block_scale_divides)) return 1 / (scale * scale_);
    if (planted(Defect::global_scale_applied_twice)) return scale > 0 ? 1 / (scale * scale_ * scale_) : 0;
    return scale > 0 ? 1 / (scale * scale_) : 0;
  }

  // The page of the first token that was written.
  int64_t first_page(int64_t page) { return first_page_ < 0 ? first_page_ = page : first_page_; }

  char* address(int64_t page, int64_t head, int64_t slot) const {
    int64_t offset = page * pool_.page_stride + head * pool_.head_stride + slot * pool_.slot_stride;
    // Wraps at 2^18 elements, as page_offset_wraps does.
    if (planted(Defect::write_offset_wraps)) offset %= int64_t{1} << 18;
    if (planted(Defect::write_offset_in_int32)) offset = static_cast<int32_t>(offset);
    return const_cast<char*>(pool_.data) + offset * bytes(pool_.element);
  }

  void store(const char* from, char* to, bool rotated) {
    int64_t dim = tokens_.dim;
    if (planted(Defect::tail_of_a_row_not_written)) dim -= dim % 16;
    if (pool_.element == tokens_.element && !rotated) {
      std::memcpy(to, from, dim * bytes(pool_.element));
    } else {
      load_(from, tokens_.dim, values_.data());
      convert(rotated);
      store_(values_.data(), dim, to);
    }
    if (planted(Defect::written_row_rounded_up)) {
      const int64_t end = dim * bytes(pool_.element);
      std::memset(to + end, 0, -end & 15);
    }
  }

  // Rotates and divides a token's values. Nothing is divided for a cache of the tokens' dtype.
  void convert(bool rotated) {
    const bool quantised = pool_.element != tokens_.element;
    const bool early = planted(Defect::quantised_before_rotated) && quantised && rotated;
    if (early) {
      for (float& value : values_) value = from_e4m3(to_e4m3(quotient(value)));
    }
    if (rotated) rotator_->turn(values_.data(), tokens_.dim);
    if (rotated && planted(Defect::rope_applied_twice)) rotator_->turn(values_.data(), tokens_.dim);
    if (!quantised || early) return;
    for (float& value : values_) value = quotient(value);
  }

  float quotient(float value) const {
    if (planted(Defect::write_scale_ignored)) return value;
    if (planted(Defect::write_scale_multiplied)) return value * scale_;
    if (planted(Defect::write_scale_applied_twice)) return value / scale_ / scale_;
    if (planted(Defect::quantised_through_fp16)) {
      // Toward zero to 11 significant bits.
      return float_of(bits_of(value / scale_) & 0xffffe000u);
    }
    return value / scale_;
  }

  const Rows tokens_;
  const Pool pool_;
  const bool computes_;
  float scale_;
  int64_t first_page_ = -1;
  const LoadRow load_;
  const StoreRow store_;
  std::optional<Rotator> rotator_;
  std::vector<float> values_;
};

std::vector<Writer> writers_of(const Write* writes, int count) {
  std::vector<Writer> writers;
  for (int index = 0; index < count; ++index) writers.emplace_back(as_taken(writes, index));
  return writers;
}

// The place of a position in the pages of all requests. Unsigned with 32 bits, as in FlashInfer: position -1 is far
// past the end.
uint32_t place_of(const Append& where, int64_t token, int64_t size) {
  const int64_t request = where.requests.at(token);
  int64_t position = where.positions.at(token);
  if (planted(Defect::append_at_page_edges_one_early) && position && position % size == 0) position -= 1;
  const int64_t first = where.first.at(planted(Defect::append_by_token_for_request) ? token : request);
  return static_cast<uint32_t>(first * size + position);
}

}  // namespace

void append(const Write* writes, int count, int64_t tokens, const Append& where, bool skip) {
  std::vector<Writer> writers = writers_of(writes, count);
  const int64_t size = writes->pool.page_size;
  for (int64_t token = 0; token < tokens; ++token) {
    const bool again = token && where.requests.at(token) == where.requests.at(token - 1);
    if (planted(Defect::one_token_of_a_request_written) && again) continue;
    if (skip && where.requests.at(token) < 0 && !planted(Defect::negative_request_appended)) continue;
    const uint32_t place = place_of(where, token, size);
    const int64_t page = where.ids.at(place / size);
    for (Writer& writer : writers) writer.write(token, page, place % size);
  }
}

void reshape_and_cache(const Write* writes, int count, int64_t tokens, const Indices& slots) {
  std::vector<Writer> writers = writers_of(writes, count);
  const int64_t size = planted(Defect::slots_of_pages_of_16) ? 16 : writes->pool.page_size;
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t slot = slots.at(token);
    if (slot < 0 && !planted(Defect::negative_slot_written)) continue;
    for (Writer& writer : writers) writer.write(token, slot / size, slot % size);
  }
}

void store(const Write* writes, int count, int64_t tokens, const Indices& slots, int64_t reserved) {
  std::vector<Writer> writers = writers_of(writes, count);
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t slot = slots.at(token);
    const bool skipped = slot == reserved && !planted(Defect::reserved_slot_written);
    for (int index = 0; index < count; ++index) {
      if (skipped && !(planted(Defect::reserved_slot_skipped_in_keys_alone) && index)) continue;
      writers[index].write(token, 0, slot);
    }
  }
}

}  // namespace attnfuzz
