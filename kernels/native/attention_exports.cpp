// The attention functions for Python. Two libraries link this file, each with its own implementation of split_kv.h and
// prefill.h: one for the CPU, and one for GPUs (../gpu/any_gpu).

#include "defects.h"
#include "exported.h"
#include "prefill.h"
#include "split_kv.h"
#include "tensors.h"

namespace attnfuzz {
namespace {

void export_decode(TensorView out, Optional<TensorView> lse, TensorView query, TensorView key, TensorView value,
                   bool paired, bool nhd, Optional<TensorView> key_scales, Optional<TensorView> value_scales, bool swizzled,
                   TensorView workspace, TensorView tables, TensorView seq_lens, int64_t q_len,
                   int64_t max_seq_len, double bmm1_scale, double bmm2_scale, int64_t window_left,
                   Optional<TensorView> sinks) {
  const Rows q = float_rows_of(query, "query"), o = float_rows_of(out, "out");
  Pool k = pool_of(key, "kv_cache", paired, 0, nhd), v = pool_of(value, "kv_cache", paired, 1, nhd);
  k.scales = scales_of(key_scales, "kv_cache_sf", k, nhd);
  v.scales = scales_of(value_scales, "kv_cache_sf", v, nhd, swizzled);
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
  require_here(kv_cache, "kv_cache");
  REQUIRE(kv_cache.ndim() == 3 || kv_cache.ndim() == 4, "kv_cache must have 3 or 4 axes, not " << kv_cache.ndim());
  const int slot = kv_cache.ndim() - 2;
  REQUIRE(kv_cache.ndim() == 3 || kv_cache.size(1) == 1, "kv_cache must have one head");
  require_last_axis_contiguous(kv_cache, "kv_cache");
  REQUIRE(kv_cache.size(slot) > 0, "kv_cache must have at least one slot per page");
  REQUIRE(tables.ndim() != 2 || tables.size(0) == query.size(0),
          "block_tables has " << tables.size(0) << " rows for " << query.size(0) << " requests");
  const Pool k{data_of(kv_cache), element_of(kv_cache, "kv_cache"), 1, kv_cache.size(slot), kv_cache.size(slot + 1),
               kv_cache.stride(0), 0, kv_cache.stride(slot)};
  REQUIRE(k.element != Element::e2m1, "kv_cache must not be uint8");
  Pool v = k;
  v.dim = rank;
  require_same_elements(q.element, k.element, v.element);
  require_fit(q, o, 1, k.dim, v.dim);
  decode(q, k, v, workspace_of(workspace), table_of(tables), lengths_of(seq_lens, "seq_lens"), query.size(0),
         query.size(1), max_seq_len, scalars_of(bmm1_scale, bmm2_scale, -1, true, sinks, q.heads), o,
         statistics_of(lse, "lse", q));
}

void export_context(TensorView out, Optional<TensorView> lse, TensorView query, TensorView key, TensorView value,
                    bool paired, bool nhd, Optional<TensorView> key_scales, Optional<TensorView> value_scales, bool swizzled,
                    TensorView tables, TensorView seq_lens, TensorView cumulative, int64_t batch,
                    double bmm1_scale, double bmm2_scale, int64_t window_left, int64_t window_right, bool causal,
                    Optional<TensorView> sinks, Optional<TensorView> masks, Optional<TensorView> mask_starts,
                    Optional<TensorView> first_keys, Optional<TensorView> last_keys) {
  const Rows q = float_rows_of(query, "query"), o = float_rows_of(out, "out");
  Pool k = pool_of(key, "kv_cache", paired, 0, nhd), v = pool_of(value, "kv_cache", paired, 1, nhd);
  k.scales = scales_of(key_scales, "kv_cache_sf", k, nhd);
  v.scales = scales_of(value_scales, "kv_cache_sf", v, nhd, swizzled);
  REQUIRE(k.heads == v.heads && k.page_size == v.page_size, "K and V must have the same heads and page size");
  require_same_elements(q.element, k.element, v.element);
  require_fit(q, o, k.heads, k.dim, v.dim);
  Scalars scalars = scalars_of(bmm1_scale, bmm2_scale, window_left, causal, sinks, q.heads);
  scalars.masks = masks_of(masks, mask_starts);
  scalars.window_right = window_right;
  scalars.intervals = intervals_of(first_keys, last_keys, q.tokens);
  context(q, k, v, table_of(tables), lengths_of(seq_lens, "seq_lens"), lengths_of(cumulative, "cum_seq_lens_q"), batch,
          scalars, o, statistics_of(lse, "lse", q));
}

void export_ragged(TensorView out, Optional<TensorView> lse, TensorView query, TensorView key, TensorView value,
                   TensorView seq_lens, TensorView cumulative_q, TensorView cumulative_kv, int64_t batch,
                   bool write_empty, double bmm1_scale, double bmm2_scale, int64_t window_left, bool causal,
                   Optional<TensorView> sinks) {
  const Rows q = float_rows_of(query, "query"), o = float_rows_of(out, "out");
  const Rows k = rows_of(key, "key");
  Rows v = rows_of(value, "value");
  REQUIRE(k.element != Element::e2m1, "key must not be uint8");
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

}  // namespace

EXPORT(decode, export_decode)
EXPORT(mla_decode, export_mla_decode)
EXPORT(context, export_context)
EXPORT(ragged, export_ragged)

}  // namespace attnfuzz
