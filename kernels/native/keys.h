// The address of key j of a request, for one KV head: in pages, or in packed tokens.
#pragma once

#include "defects.h"
#include "views.h"

namespace attnfuzz {

class Keys {
 public:
  ON_BOTH Keys(Element key, Element value, int64_t value_dim)
      : key_element(key), value_element(value), value_dim(value_dim) {}
  ON_BOTH virtual const char* key(int64_t index) const = 0;
  ON_BOTH virtual const char* value(int64_t index) const = 0;

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

 private:
  ON_BOTH const char* at(const Pool& pool, int64_t index) const {
    const int64_t looked_up = planted(Defect::tile_taken_from_one_page) ? index - index % 32 : index;
    const int64_t page = ids_[looked_up / pool.page_size * id_stride_];
    const int64_t slot = looked_up % pool.page_size + (index - looked_up);
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
