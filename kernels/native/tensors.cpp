#include "tensors.h"

#include "defects.h"

namespace attnfuzz {

char* data_of(const TensorView& tensor) { return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(); }

void require_axes(const TensorView& tensor, const char* name, int axes) {
  require_here(tensor, name);
  REQUIRE(tensor.ndim() == axes, name << " must have " << axes << " axes, not " << tensor.ndim());
}

bool is(const TensorView& tensor, int code, int bits) {
  return tensor.dtype().code == code && tensor.dtype().bits == bits && tensor.dtype().lanes == 1;
}

void require_last_axis_contiguous(const TensorView& tensor, const char* name) {
  const int last = tensor.ndim() - 1;
  REQUIRE(tensor.size(last) <= 1 || tensor.stride(last) == 1, name << " must be contiguous in its last axis");
}

Element element_of(const TensorView& tensor, const char* name) {
  if (is(tensor, kDLFloat, 32)) return Element::f32;
  if (is(tensor, kDLFloat, 16)) return Element::f16;
  if (is(tensor, kDLBfloat, 16)) return Element::bf16;
  if (is(tensor, kDLFloat8_e4m3fn, 8)) return Element::e4m3;
  if (is(tensor, kDLUInt, 8)) return Element::e2m1;
  TVM_FFI_THROW(ValueError) << name << " must be float32, float16, bfloat16, float8_e4m3fn or, for NVFP4, uint8";
  __builtin_unreachable();
}

bool is_float(Element element) { return element != Element::e4m3 && element != Element::e2m1; }

Rows rows_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 3);
  require_last_axis_contiguous(tensor, name);
  return {data_of(tensor), element_of(tensor, name), tensor.size(0), tensor.size(1), tensor.size(2),
          tensor.stride(0), tensor.stride(1)};
}

Rows float_rows_of(const TensorView& tensor, const char* name) {
  const Rows rows = rows_of(tensor, name);
  REQUIRE(is_float(rows.element), name << " must be float32, float16 or bfloat16");
  return rows;
}

Rows batched_rows_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 4);
  require_last_axis_contiguous(tensor, name);
  REQUIRE(tensor.size(0) <= 1 || tensor.size(1) <= 1 || tensor.stride(0) == tensor.size(1) * tensor.stride(1),
          name << " must have its tokens at one stride over its first two axes");
  const Element element = element_of(tensor, name);
  REQUIRE(is_float(element), name << " must be float32, float16 or bfloat16");
  const int64_t token_stride = tensor.size(1) > 1 ? tensor.stride(1) : tensor.stride(0);
  return {data_of(tensor), element, tensor.size(0) * tensor.size(1), tensor.size(2), tensor.size(3), token_stride,
          tensor.stride(2)};
}

Statistics statistics_of(const TensorView& tensor, const char* name, const Rows& rows) {
  require_axes(tensor, name, 2);
  REQUIRE(is(tensor, kDLFloat, 32), name << " must be float32");
  REQUIRE(tensor.size(0) == rows.tokens && tensor.size(1) == rows.heads,
          name << " must have shape [" << rows.tokens << ", " << rows.heads << "]");
  return {reinterpret_cast<float*>(data_of(tensor)), tensor.stride(0), tensor.stride(1)};
}

Statistics statistics_of(const Optional<TensorView>& tensor, const char* name, const Rows& rows) {
  return tensor.has_value() ? statistics_of(tensor.value(), name, rows) : Statistics{};
}

const int32_t* int32_of(const TensorView& tensor, const char* name, int axes) {
  require_axes(tensor, name, axes);
  REQUIRE(is(tensor, kDLInt, 32), name << " must be int32");
  return reinterpret_cast<const int32_t*>(data_of(tensor));
}

Lengths lengths_of(const TensorView& tensor, const char* name) {
  return {int32_of(tensor, name, 1), tensor.stride(0)};
}

PackedMasks masks_of(const Optional<TensorView>& bits, const Optional<TensorView>& starts) {
  REQUIRE(bits.has_value() == starts.has_value(), "packed_custom_mask and mask_indptr must be given together");
  if (!bits.has_value()) return {};
  const TensorView& packed = bits.value();
  require_axes(packed, "packed_custom_mask", 1);
  require_last_axis_contiguous(packed, "packed_custom_mask");
  REQUIRE(is(packed, kDLUInt, 8), "packed_custom_mask must be uint8");
  return {reinterpret_cast<const uint8_t*>(data_of(packed)), lengths_of(starts.value(), "mask_indptr")};
}

Intervals intervals_of(const Optional<TensorView>& first, const Optional<TensorView>& last, int64_t rows) {
  if (!first.has_value()) return {};
  const char* names[] = {"variable_window_token_starts", "variable_window_token_ends"};
  const Intervals intervals{lengths_of(first.value(), names[0]), lengths_of(last.value(), names[1])};
  for (const TensorView& tensor : {first.value(), last.value()}) {
    REQUIRE(tensor.size(0) == rows, "variable windows must have " << rows << " entries, one for each query");
  }
  return intervals;
}

PageTable table_of(const TensorView& tensor) {
  const int64_t row_stride = planted(Defect::table_gap_ignored) ? tensor.size(1) : tensor.stride(0);
  return {int32_of(tensor, "block_tables", 2), row_stride, tensor.stride(1)};
}

Pool pool_of(const TensorView& tensor, const char* name, bool paired, int member, bool nhd) {
  require_axes(tensor, name, paired ? 5 : 4);
  require_last_axis_contiguous(tensor, name);
  const Element element = element_of(tensor, name);
  const char* data = data_of(tensor);
  if (paired) {
    REQUIRE(tensor.size(1) == 1 || tensor.size(1) == 2, name << " must have 1 or 2 in its second axis");
    if (tensor.size(1) == 2) data += member * tensor.stride(1) * bytes(element);
  }
  const int first = paired ? 2 : 1;
  const int head = nhd ? first + 1 : first, slot = nhd ? first : first + 1;
  REQUIRE(tensor.size(head) > 0 && tensor.size(slot) > 0, name << " must have at least one head and one slot per page");
  const int64_t dim = tensor.size(first + 2) * (element == Element::e2m1 ? 2 : 1);
  return {data, element, tensor.size(head), tensor.size(slot), dim, tensor.stride(0), tensor.stride(head),
          tensor.stride(slot)};
}

namespace {

// [pages, heads, slots] or [pages, slots, heads] in fp32, or with an additional axis of blocks in e4m3.
Scales scales_of_slots(const TensorView& tensor, const char* name, const Pool& pool, bool nhd, bool swizzled) {
  const bool blocks = pool.element == Element::e2m1;
  require_axes(tensor, name, blocks ? 4 : 3);
  const int head = nhd ? 2 : 1, slot = nhd ? 1 : 2;
  REQUIRE(tensor.size(head) == pool.heads && tensor.size(slot) == pool.page_size,
          name << " must have the heads and the page size of its cache");
  Scales scales{data_of(tensor), tensor.stride(0), tensor.stride(head), tensor.stride(slot)};
  if (!blocks) return scales;
  require_last_axis_contiguous(tensor, name);
  scales.blocks = tensor.size(3);
  scales.swizzled = swizzled;
  REQUIRE(scales.blocks * kBlock == pool.dim, name << " must have a scale for each " << kBlock << " elements");
  REQUIRE(!swizzled || (scales.blocks % 4 == 0 && pool.page_size % 4 == 0),
          name << " can only be swizzled in groups of four slots and blocks");
  return scales;
}

}  // namespace

Scales scales_of(const TensorView& tensor, const char* name, const Pool& pool, bool nhd, bool swizzled) {
  require_here(tensor, name);
  const bool blocks = pool.element == Element::e2m1;
  REQUIRE(is(tensor, blocks ? kDLFloat8_e4m3fn : kDLFloat, blocks ? 8 : 32),
          name << " must be " << (blocks ? "float8_e4m3fn" : "float32"));
  if (blocks || tensor.ndim() != 1) return scales_of_slots(tensor, name, pool, nhd, swizzled);
  REQUIRE(tensor.size(0) == pool.heads, name << " must have a scale for each of " << pool.heads << " heads");
  return {data_of(tensor), 0, tensor.stride(0), 0};
}

Scales scales_of(const Optional<TensorView>& tensor, const char* name, const Pool& pool, bool nhd, bool swizzled) {
  REQUIRE(tensor.has_value() || pool.element != Element::e2m1, name << " must be given for a cache of uint8");
  return tensor.has_value() ? scales_of(tensor.value(), name, pool, nhd, swizzled) : Scales{};
}

void require_fit(const Rows& query, const Rows& out, int64_t heads, int64_t dim, int64_t value_dim) {
  REQUIRE(heads > 0 && query.heads % heads == 0,
          "query has " << query.heads << " heads, which is no multiple of the " << heads << " heads of K and V");
  REQUIRE(query.dim == dim, "query has head dim " << query.dim << ", K has " << dim);
  REQUIRE(out.tokens == query.tokens && out.heads == query.heads && out.dim == value_dim,
          "out must have shape [" << query.tokens << ", " << query.heads << ", " << value_dim << "]");
}

void require_same_elements(Element query, Element key, Element value) {
  REQUIRE(key == value, "K and V must have the same dtype");
  REQUIRE(key == query || !is_float(key), "K and V must have the dtype of query, or float8_e4m3fn, or uint8");
}

Scalars scalars_of(double bmm1_scale, double bmm2_scale, int64_t window_left, bool causal,
                   const Optional<TensorView>& sinks, int64_t heads) {
  REQUIRE(window_left >= -1, "window_left must be -1 (no window) or more, not " << window_left);
  Scalars scalars{static_cast<float>(bmm1_scale), static_cast<float>(bmm2_scale), window_left, causal, nullptr};
  if (sinks.has_value()) {
    const TensorView& tensor = sinks.value();
    require_axes(tensor, "sinks", 1);
    require_last_axis_contiguous(tensor, "sinks");
    REQUIRE(is(tensor, kDLFloat, 32) && tensor.size(0) == heads, "sinks must be float32 of shape [" << heads << "]");
    scalars.sinks = reinterpret_cast<const float*>(data_of(tensor));
  }
  return scalars;
}

char* workspace_of(const TensorView& tensor) {
  char* data = data_of(tensor);
  require_here(tensor, "workspace_buffer");
  REQUIRE(reinterpret_cast<uintptr_t>(data) % 4 == 0, "workspace_buffer must be aligned to 4 bytes");
  return data;
}

}  // namespace attnfuzz
