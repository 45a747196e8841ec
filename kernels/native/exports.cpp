// What Python calls: tensors are checked and taken apart here, and nowhere else. Checked is what a caller can get wrong
// about one tensor (dtype, axes, contiguity) and that q, K, V and outputs fit each other. How many rows the metadata
// has is not checked against the batch: FlashInfer's kernels trust their caller there, and so do these.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include "defects.h"
#include "faults.h"
#include "prefill.h"
#include "split_kv.h"
#include "states.h"

namespace attnfuzz {
namespace {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

#define REQUIRE(condition, message) \
  if (!(condition)) TVM_FFI_THROW(ValueError) << message

char* data_of(const TensorView& tensor) { return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(); }

void require_axes(const TensorView& tensor, const char* name, int axes) {
  REQUIRE(tensor.device().device_type == kDLCPU, name << " must be on the CPU");
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
  TVM_FFI_THROW(ValueError) << name << " must be float32, float16, bfloat16 or float8_e4m3fn";
  __builtin_unreachable();
}

Rows rows_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 3);
  require_last_axis_contiguous(tensor, name);
  return {data_of(tensor), element_of(tensor, name), tensor.size(0), tensor.size(1), tensor.size(2),
          tensor.stride(0), tensor.stride(1)};
}

Rows float_rows_of(const TensorView& tensor, const char* name) {
  const Rows rows = rows_of(tensor, name);
  REQUIRE(rows.element != Element::e4m3, name << " must be float32, float16 or bfloat16");
  return rows;
}

// [batch, q_len, heads, dim] seen as [batch * q_len, heads, dim].
Rows batched_rows_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 4);
  require_last_axis_contiguous(tensor, name);
  REQUIRE(tensor.size(0) <= 1 || tensor.size(1) <= 1 || tensor.stride(0) == tensor.size(1) * tensor.stride(1),
          name << " must have its tokens at one stride over its first two axes");
  const Element element = element_of(tensor, name);
  REQUIRE(element != Element::e4m3, name << " must be float32, float16 or bfloat16");
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

PageTable table_of(const TensorView& tensor) {
  const int64_t row_stride = planted(Defect::table_gap_ignored) ? tensor.size(1) : tensor.stride(0);
  return {int32_of(tensor, "block_tables", 2), row_stride, tensor.stride(1)};
}

// One of K and V: [pages, heads, slots, dim] (HND) or [pages, slots, heads, dim] (NHD), or member `member` of
// [pages, 1 or 2, ...].
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
  return {data, element, tensor.size(head), tensor.size(slot), tensor.size(first + 2),
          tensor.stride(0), tensor.stride(head), tensor.stride(slot)};
}

// `heads`, `dim` and `value_dim` are those of K and V.
void require_fit(const Rows& query, const Rows& out, int64_t heads, int64_t dim, int64_t value_dim) {
  REQUIRE(heads > 0 && query.heads % heads == 0,
          "query has " << query.heads << " heads, which is no multiple of the " << heads << " heads of K and V");
  REQUIRE(query.dim == dim, "query has head dim " << query.dim << ", K has " << dim);
  REQUIRE(out.tokens == query.tokens && out.heads == query.heads && out.dim == value_dim,
          "out must have shape [" << query.tokens << ", " << query.heads << ", " << value_dim << "]");
}

void require_same_elements(Element query, Element key, Element value) {
  REQUIRE(key == value, "K and V must have the same dtype");
  REQUIRE(key == query || key == Element::e4m3, "K and V must have the dtype of query, or float8_e4m3fn");
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
  REQUIRE(tensor.device().device_type == kDLCPU, "workspace_buffer must be on the CPU");
  REQUIRE(reinterpret_cast<uintptr_t>(data) % 4 == 0, "workspace_buffer must be aligned to 4 bytes");
  return data;
}

void export_decode(TensorView out, Optional<TensorView> lse, TensorView query, TensorView key, TensorView value,
                   bool paired, bool nhd, TensorView workspace, TensorView tables, TensorView seq_lens, int64_t q_len,
                   int64_t max_seq_len, double bmm1_scale, double bmm2_scale, int64_t window_left,
                   Optional<TensorView> sinks) {
  const Rows q = float_rows_of(query, "query"), o = float_rows_of(out, "out");
  const Pool k = pool_of(key, "kv_cache", paired, 0, nhd), v = pool_of(value, "kv_cache", paired, 1, nhd);
  REQUIRE(q_len >= 1, "q_len_per_req must be 1 or more, not " << q_len);
  REQUIRE(k.heads == v.heads && k.page_size == v.page_size, "K and V must have the same heads and page size");
  require_same_elements(q.element, k.element, v.element);
  require_fit(q, o, k.heads, k.dim, v.dim);
  decode(q, k, v, workspace_of(workspace), table_of(tables), lengths_of(seq_lens, "seq_lens"), q.tokens / q_len, q_len,
         max_seq_len, scalars_of(bmm1_scale, bmm2_scale, window_left, true, sinks, q.heads), o,
         statistics_of(lse, "lse", q));
}

void export_mla_decode(TensorView out, Optional<TensorView> lse, TensorView query, TensorView kv_cache,
                       TensorView workspace, TensorView tables, TensorView seq_lens, int64_t rank, int64_t max_seq_len,
                       double bmm1_scale, double bmm2_scale, Optional<TensorView> sinks) {
  const Rows q = batched_rows_of(query, "query"), o = batched_rows_of(out, "out");
  REQUIRE(kv_cache.ndim() == 3 || kv_cache.ndim() == 4, "kv_cache must have 3 or 4 axes, not " << kv_cache.ndim());
  const int slot = kv_cache.ndim() - 2;
  REQUIRE(kv_cache.ndim() == 3 || kv_cache.size(1) == 1, "kv_cache must have one head");
  require_last_axis_contiguous(kv_cache, "kv_cache");
  REQUIRE(kv_cache.size(slot) > 0, "kv_cache must have at least one slot per page");
  REQUIRE(tables.ndim() != 2 || tables.size(0) == query.size(0),
          "block_tables has " << tables.size(0) << " rows for " << query.size(0) << " requests");
  const Pool k{data_of(kv_cache), element_of(kv_cache, "kv_cache"), 1, kv_cache.size(slot), kv_cache.size(slot + 1),
               kv_cache.stride(0), 0, kv_cache.stride(slot)};
  Pool v = k;
  v.dim = rank;
  require_same_elements(q.element, k.element, v.element);
  require_fit(q, o, 1, k.dim, v.dim);
  decode(q, k, v, workspace_of(workspace), table_of(tables), lengths_of(seq_lens, "seq_lens"), query.size(0),
         query.size(1), max_seq_len, scalars_of(bmm1_scale, bmm2_scale, -1, true, sinks, q.heads), o,
         statistics_of(lse, "lse", q));
}

void export_context(TensorView out, Optional<TensorView> lse, TensorView query, TensorView key, TensorView value,
                    bool paired, bool nhd, TensorView tables, TensorView seq_lens, TensorView cumulative, int64_t batch,
                    double bmm1_scale, double bmm2_scale, int64_t window_left, bool causal,
                    Optional<TensorView> sinks) {
  const Rows q = float_rows_of(query, "query"), o = float_rows_of(out, "out");
  const Pool k = pool_of(key, "kv_cache", paired, 0, nhd), v = pool_of(value, "kv_cache", paired, 1, nhd);
  REQUIRE(k.heads == v.heads && k.page_size == v.page_size, "K and V must have the same heads and page size");
  require_same_elements(q.element, k.element, v.element);
  require_fit(q, o, k.heads, k.dim, v.dim);
  context(q, k, v, table_of(tables), lengths_of(seq_lens, "seq_lens"), lengths_of(cumulative, "cum_seq_lens_q"), batch,
          scalars_of(bmm1_scale, bmm2_scale, window_left, causal, sinks, q.heads), o, statistics_of(lse, "lse", q));
}

void export_ragged(TensorView out, Optional<TensorView> lse, TensorView query, TensorView key, TensorView value,
                   TensorView seq_lens, TensorView cumulative_q, TensorView cumulative_kv, int64_t batch,
                   bool write_empty, double bmm1_scale, double bmm2_scale, int64_t window_left, bool causal,
                   Optional<TensorView> sinks) {
  const Rows q = float_rows_of(query, "query"), o = float_rows_of(out, "out");
  const Rows k = rows_of(key, "key");
  Rows v = rows_of(value, "value");
  REQUIRE(k.heads == v.heads && k.tokens == v.tokens, "key and value must have the same tokens and heads");
  require_same_elements(q.element, k.element, v.element);
  require_fit(q, o, k.heads, k.dim, v.dim);
  if (planted(Defect::values_at_key_strides)) {
    v.token_stride = k.token_stride;
    v.head_stride = k.head_stride;
  }
  ragged(q, k, v, lengths_of(seq_lens, "seq_lens"), lengths_of(cumulative_q, "cum_seq_lens_q"),
         lengths_of(cumulative_kv, "cum_seq_lens_kv"), batch, write_empty,
         scalars_of(bmm1_scale, bmm2_scale, window_left, causal, sinks, q.heads), o, statistics_of(lse, "lse", q));
}

void export_merge_state_in_place(TensorView v, TensorView s, TensorView v_other, TensorView s_other,
                                 Optional<TensorView> mask) {
  const Rows value = float_rows_of(v, "v"), other = float_rows_of(v_other, "v_other");
  REQUIRE(other.element == value.element, "v_other must have the dtype of v");
  REQUIRE(other.tokens == value.tokens && other.heads == value.heads && other.dim == value.dim,
          "v_other must have the shape of v");
  const uint8_t* merged = nullptr;
  if (mask.has_value()) {
    const TensorView& tensor = mask.value();
    require_axes(tensor, "mask", 1);
    require_last_axis_contiguous(tensor, "mask");
    REQUIRE((is(tensor, kDLBool, 8) || is(tensor, kDLUInt, 8)) && tensor.size(0) == value.tokens,
            "mask must be bool or uint8 of shape [" << value.tokens << "]");
    merged = reinterpret_cast<const uint8_t*>(data_of(tensor));
  }
  merge_state_in_place(value, statistics_of(s, "s", value), other, statistics_of(s_other, "s_other", value), merged);
}

void export_fixup_zero_kv_rows(TensorView out, TensorView lse, TensorView kv_lens, TensorView cum_seq_lens,
                               int64_t max_seq_len) {
  const Rows rows = float_rows_of(out, "out");
  const Lengths lengths = lengths_of(kv_lens, "kv_lens"), cumulative = lengths_of(cum_seq_lens, "cum_seq_lens");
  REQUIRE(cum_seq_lens.size(0) == kv_lens.size(0) + 1,
          "cum_seq_lens must have " << kv_lens.size(0) + 1 << " entries (one more than kv_lens), not "
                                    << cum_seq_lens.size(0));
  REQUIRE(max_seq_len >= 0, "max_seq_len must be 0 or more, not " << max_seq_len);
  fixup_zero_kv_rows(rows, statistics_of(lse, "lse", rows), lengths, cumulative, kv_lens.size(0), max_seq_len);
}

void export_install_fault_recorder(int64_t address) {
  REQUIRE(address != 0 && address % alignof(FaultRecord) == 0,
          "a fault record needs an address that is a multiple of " << alignof(FaultRecord));
  install_fault_recorder(reinterpret_cast<FaultRecord*>(address));
}

int64_t export_semaphore_bytes() { return kSemaphoreBytes; }

#ifdef ATTNFUZZ_DEFECTS
void export_plant(tvm::ffi::String name) {
  REQUIRE(plant({name.data(), name.size()}), "there is no defect called " << name);
}

void export_uproot_all() { uproot_all(); }
#endif

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode, export_decode)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(mla_decode, export_mla_decode)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(context, export_context)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ragged, export_ragged)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(merge_state_in_place, export_merge_state_in_place)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fixup_zero_kv_rows, export_fixup_zero_kv_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(install_fault_recorder, export_install_fault_recorder)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(semaphore_bytes, export_semaphore_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scratch_bytes, scratch_bytes)
#ifdef ATTNFUZZ_DEFECTS
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plant, export_plant)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(uproot_all, export_uproot_all)
#endif

}  // namespace attnfuzz
