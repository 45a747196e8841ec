// The address of key j of a request, for one KV head: in pages, or in packed tokens.
#pragma once

#include "defects.h"
#include "element_values.h"
#include "views.h"

namespace attnfuzz {

class Keys {
 public:
  ON_BOTH Keys(Element key, Element value, int64_t value_dim)
      : key_element(key), value_element(value), value_dim(value_dim) {}
  ON_BOTH virtual const char* key(int64_t index) const = 0;
  ON_BOTH virtual const char* value(int64_t index) const = 0;

  // Multiply the elements of a key or a value by their scales, if there is a tensor of scales.
  ON_BOTH virtual void scale_key(int64_t, float*) const {}
  ON_BOTH virtual void scale_value(int64_t, float*) const {}

  const Element key_element, value_element;
  const int64_t value_dim;

 protected:
  ~Keys() = default;
};

// Page ids are read from the table when a key is accessed, and never checked: a bad id is a bad address.
class PagedKeys final : public Keys {
 public:
  ON_BOTH PagedKeys(const Pool& key, const Pool& value, const PageTable& table, int64_t request, int64_t head)
      : Keys(key.element, value.element, value.dim), key_(key), value_(value),
        ids_(table.data + request * table.row_stride), id_stride_(table.column_stride), head_(head) {}

  ON_BOTH const char* key(int64_t index) const override { return at(key_, index); }
  ON_BOTH const char* value(int64_t index) const override { return at(value_, index); }
  ON_BOTH void scale_key(int64_t index, float* row) const override { scale(key_, key_.scales, index, row); }
  ON_BOTH void scale_value(int64_t index, float* row) const override {
    scale(value_, planted(Defect::value_dequantised_as_key) ? key_.scales : value_.scales, index, row);
  }

 private:
  struct Place {
    int64_t page, slot;
  };

  ON_BOTH Place place(const Pool& pool, int64_t index) const {
    const int64_t looked_up = planted(Defect::tile_taken_from_one_page) ? index - index % 32 : index;
    const int64_t page = ids_[looked_up / pool.page_size * id_stride_];
    return {page, looked_up % pool.page_size + (index - looked_up)};
  }

  ON_BOTH void scale(const Pool& pool, const Scales& scales, int64_t index, float* row) const {
    if (!scales.data) return;
    int64_t of = index;
    if (planted(Defect::scale_of_the_first_key_in_a_tile)) of -= of % 32;
    if (planted(Defect::scale_of_the_key_before) && of) of -= 1;
    Place at = place(pool, of);
    if (planted(Defect::scale_at_the_page_of_the_table)) at.page = index / pool.page_size;
    if (planted(Defect::scale_of_the_first_slot)) at.slot = 0;
    const int64_t head = planted(Defect::scale_of_the_first_head) ? 0 : head_;
    const Scales addressed = spoiled(scales, pool);
    if (scales.blocks) return scale_blocks(addressed, at, head, row);
    float by = addressed.at(at.page, head, at.slot);
    if (planted(Defect::scale_in_bf16)) by = cut_to_bf16(by);
    for (int64_t i = 0; i < pool.dim; ++i) row[i] *= by;
  }

  ON_BOTH static void scale_blocks(const Scales& scales, const Place& at, int64_t head, float* row) {
    for (int64_t block = 0; block < scales.blocks; ++block) {
      int64_t of = block;
      if (planted(Defect::scale_of_the_block_before) && of) of -= 1;
      if (planted(Defect::scale_of_blocks_of_32)) of -= of % 2;
      const float by = from_e4m3(scales.block(at.page, head, at.slot, of));
      for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) row[i] *= by;
    }
  }

  // Returns the scales at the addresses that a kernel with the planted mistakes uses.
  ON_BOTH static Scales spoiled(Scales scales, const Pool& pool) {
    if (planted(Defect::scale_pages_taken_for_packed) && scales.page_stride) {
      scales.page_stride = pool.heads * pool.page_size * larger(scales.blocks, 1);
    }
    if (planted(Defect::swizzled_scales_read_as_linear)) scales.swizzled = false;
    if (planted(Defect::scale_layouts_mixed) && scales.page_stride) {
      const int64_t head_stride = scales.head_stride;
      scales.head_stride = scales.slot_stride;
      scales.slot_stride = head_stride;
    }
    return scales;
  }

  ON_BOTH const char* at(const Pool& pool, int64_t index) const {
    const auto [page, slot] = place(pool, index);
    int64_t offset = page * pool.page_stride + head_ * pool.head_stride + slot * pool.slot_stride;
    // Wraps at 2^18 elements; the pool of a GPU wraps at 2^31 or 2^32, which takes gigabytes.
    if (planted(Defect::page_offset_wraps)) offset %= int64_t{1} << 18;
    if (planted(Defect::page_offset_in_int32)) offset = static_cast<int32_t>(offset);
    return pool.data + offset * bytes(pool.element);
  }

  const Pool& key_;
  const Pool& value_;
  const int32_t* ids_;
  int64_t id_stride_, head_;
};

class RaggedKeys final : public Keys {
 public:
  ON_BOTH RaggedKeys(const Rows& key, const Rows& value, int64_t first, int64_t head)
      : Keys(key.element, value.element, value.dim), key_(key), value_(value), first_(first), head_(head) {}

  ON_BOTH const char* key(int64_t index) const override { return key_.at(first_ + index, head_); }
  ON_BOTH const char* value(int64_t index) const override { return value_.at(first_ + index, head_); }

 private:
  const Rows& key_;
  const Rows& value_;
  int64_t first_, head_;
};

}  // namespace attnfuzz
