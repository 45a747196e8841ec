// The functions for Python that write into a KV cache.

#include <utility>

#include "cache_copies.h"
#include "cache_writes.h"
#include "exported.h"
#include "tensors.h"

namespace attnfuzz {
namespace {

Indices indices_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 1);
  const bool wide = is(tensor, kDLInt, 64);
  REQUIRE(wide || is(tensor, kDLInt, 32), name << " must be int32 or int64");
  return {data_of(tensor), tensor.stride(0), wide};
}

Indices narrow_indices_of(const TensorView& tensor, const char* name) {
  const Indices indices = indices_of(tensor, name);
  REQUIRE(!indices.wide, name << " must be int32");
  return indices;
}

// [tokens, dim] as tokens of one head.
Rows headless_rows_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 2);
  require_last_axis_contiguous(tensor, name);
  return {data_of(tensor), element_of(tensor, name), tensor.size(0), 1, tensor.size(1), tensor.stride(0), 0};
}

// [pages, slots, dim] as a pool of one head.
Pool headless_pool_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 3);
  require_last_axis_contiguous(tensor, name);
  REQUIRE(tensor.size(1) > 0, name << " must have at least one slot per page");
  return {data_of(tensor), element_of(tensor, name), 1, tensor.size(1), tensor.size(2), tensor.stride(0), 0,
          tensor.stride(1)};
}

// [slots, heads, dim] as a single page.
Pool flat_pool_of(const TensorView& tensor, const char* name) {
  const Rows rows = rows_of(tensor, name);
  return {rows.data, rows.element, rows.heads, larger(rows.tokens, 1), rows.dim, 0, rows.head_stride, rows.token_stride};
}

// The pools of the first `rank` elements of latents, and of the rest.
std::pair<Pool, Pool> parts_of(const Pool& latents, int64_t rank) {
  Pool first = latents, second = latents;
  first.dim = rank;
  second.dim -= rank;
  second.data += rank * bytes(second.element);
  return {first, second};
}

// A pool whose elements move unchanged: NVFP4 would need its scales moved, too.
Pool whole_pool_of(const TensorView& tensor, const char* name, bool nhd) {
  const Pool pool = pool_of(tensor, name, false, 0, nhd);
  REQUIRE(pool.element != Element::e2m1, name << " must not be uint8");
  return pool;
}

Write write_of(const Rows& tokens, const Pool& pool, double scale, const char* name) {
  REQUIRE(tokens.heads == pool.heads && tokens.dim == pool.dim,
          name << " has " << tokens.heads << " heads of dim " << tokens.dim << ", its cache " << pool.heads
               << " of dim " << pool.dim);
  REQUIRE(tokens.element != Element::e2m1, name << " must not be uint8");
  REQUIRE(pool.element == tokens.element || pool.element == Element::e4m3 || pool.scales.blocks,
          "the cache must have the dtype of " << name << ", or float8_e4m3fn");
  return {tokens, pool, static_cast<float>(scale)};
}

// The indices of FlashInfer's append, checked as far as FlashInfer does.
Append append_of(int64_t tokens, const TensorView& batch_indices, const TensorView& positions,
                 const TensorView& kv_indices, const TensorView& kv_indptr, const TensorView& kv_last_page_len) {
  narrow_indices_of(kv_last_page_len, "kv_last_page_len");
  REQUIRE(batch_indices.size(0) == tokens && positions.size(0) == tokens,
          "batch_indices and positions must have an entry for each of the " << tokens << " tokens");
  REQUIRE(kv_indptr.size(0) == kv_last_page_len.size(0) + 1,
          "kv_indptr must have one entry more than kv_last_page_len");
  return {narrow_indices_of(batch_indices, "batch_indices"), narrow_indices_of(positions, "positions"),
          narrow_indices_of(kv_indices, "kv_indices"), narrow_indices_of(kv_indptr, "kv_indptr")};
}

void export_append_paged_kv_cache(TensorView append_key, TensorView append_value, TensorView batch_indices,
                                  TensorView positions, TensorView k_cache, TensorView v_cache,
                                  TensorView kv_indices, TensorView kv_indptr, TensorView kv_last_page_len, bool nhd) {
  const Pool key = pool_of(k_cache, "k_cache", false, 0, nhd);
  const Pool value = pool_of(v_cache, "v_cache", false, 0, nhd);
  const Rows keys = rows_of(append_key, "append_key"), values = rows_of(append_value, "append_value");
  REQUIRE(key.element == keys.element && value.element == values.element,
          "append_key and append_value must have the dtype of the cache");
  REQUIRE(key.page_size == value.page_size, "K and V must have the same page size");
  const Write writes[] = {write_of(keys, key, 1, "append_key"), write_of(values, value, 1, "append_value")};
  append(writes, 2, keys.tokens,
         append_of(keys.tokens, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len));
}

void export_nvfp4_quantize_append_paged_kv_cache(TensorView append_key, TensorView append_value,
                                                 TensorView batch_indices, TensorView positions, TensorView k_cache,
                                                 TensorView v_cache, TensorView k_scales,
                                                 TensorView v_scales, TensorView kv_indices, TensorView kv_indptr,
                                                 TensorView kv_last_page_len, double k_scale, double v_scale,
                                                 bool nhd) {
  Pool key = pool_of(k_cache, "k_cache", false, 0, nhd);
  Pool value = pool_of(v_cache, "v_cache", false, 0, nhd);
  REQUIRE(key.element == Element::e2m1 && value.element == Element::e2m1, "k_cache and v_cache must be uint8");
  REQUIRE(key.page_size == value.page_size, "K and V must have the same page size");
  key.scales = scales_of(k_scales, "k_scales", key, nhd);
  value.scales = scales_of(v_scales, "v_scales", value, nhd);
  const Rows keys = rows_of(append_key, "append_key"), values = rows_of(append_value, "append_value");
  const Write writes[] = {write_of(keys, key, k_scale, "append_key"), write_of(values, value, v_scale, "append_value")};
  append(writes, 2, keys.tokens,
         append_of(keys.tokens, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len));
}

void export_reshape_and_cache_nvfp4(TensorView key, TensorView value, TensorView key_cache, TensorView value_cache,
                                    TensorView k_scales, TensorView v_scales, TensorView slot_mapping, double k_scale,
                                    double v_scale, bool nhd) {
  Pool k = pool_of(key_cache, "key_cache", false, 0, nhd), v = pool_of(value_cache, "value_cache", false, 0, nhd);
  REQUIRE(k.element == Element::e2m1 && v.element == Element::e2m1, "key_cache and value_cache must be uint8");
  REQUIRE(k.page_size == v.page_size, "key_cache and value_cache must have the same page size");
  k.scales = scales_of(k_scales, "k_scales", k, nhd);
  v.scales = scales_of(v_scales, "v_scales", v, nhd, true);
  const Indices slots = indices_of(slot_mapping, "slot_mapping");
  REQUIRE(slots.wide, "slot_mapping must be int64");
  const Write writes[] = {write_of(rows_of(key, "key"), k, k_scale, "key"),
                          write_of(rows_of(value, "value"), v, v_scale, "value")};
  reshape_and_cache(writes, 2, slot_mapping.size(0), slots);
}

void export_append_paged_mla_kv_cache(TensorView append_ckv, TensorView append_kpe, TensorView batch_indices,
                                      TensorView positions, TensorView ckv_cache, TensorView kpe_cache,
                                      TensorView kv_indices, TensorView kv_indptr, TensorView kv_last_page_len) {
  const Pool ckv = headless_pool_of(ckv_cache, "ckv_cache"), kpe = headless_pool_of(kpe_cache, "kpe_cache");
  const Rows latent = headless_rows_of(append_ckv, "append_ckv"), rope = headless_rows_of(append_kpe, "append_kpe");
  REQUIRE(ckv.element == latent.element && kpe.element == rope.element,
          "append_ckv and append_kpe must have the dtypes of their caches");
  REQUIRE(ckv.page_size == kpe.page_size, "ckv_cache and kpe_cache must have the same page size");
  const Write writes[] = {write_of(latent, ckv, 1, "append_ckv"), write_of(rope, kpe, 1, "append_kpe")};
  append(writes, 2, latent.tokens,
         append_of(latent.tokens, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len));
}

void export_reshape_and_cache_flash(TensorView key, TensorView value, TensorView key_cache, TensorView value_cache,
                                    TensorView slot_mapping, bool nhd, double k_scale, double v_scale,
                                    Optional<TensorView> k_scales, Optional<TensorView> v_scales) {
  Pool k = pool_of(key_cache, "key_cache", false, 0, nhd), v = pool_of(value_cache, "value_cache", false, 0, nhd);
  k.scales = scales_of(k_scales, "k_scale", k, nhd);
  v.scales = scales_of(v_scales, "v_scale", v, nhd);
  REQUIRE(k.page_size == v.page_size, "key_cache and value_cache must have the same page size");
  const Indices slots = indices_of(slot_mapping, "slot_mapping");
  REQUIRE(slots.wide, "slot_mapping must be int64");
  const Write writes[] = {write_of(rows_of(key, "key"), k, k_scale, "key"),
                          write_of(rows_of(value, "value"), v, v_scale, "value")};
  reshape_and_cache(writes, 2, slot_mapping.size(0), slots);
}

void export_reshape_and_cache_per_token_head(TensorView key, TensorView value, TensorView key_cache,
                                             TensorView value_cache, TensorView k_scale_cache, TensorView v_scale_cache,
                                             TensorView slot_mapping) {
  Pool k = pool_of(key_cache, "key_cache", false, 0, true), v = pool_of(value_cache, "value_cache", false, 0, true);
  require_axes(k_scale_cache, "k_scale_cache", 3);
  require_axes(v_scale_cache, "v_scale_cache", 3);
  k.scales = scales_of(k_scale_cache, "k_scale_cache", k, true);
  v.scales = scales_of(v_scale_cache, "v_scale_cache", v, true);
  REQUIRE(k.page_size == v.page_size, "key_cache and value_cache must have the same page size");
  REQUIRE(k.element == Element::e4m3 && v.element == Element::e4m3, "the caches must be float8_e4m3fn");
  const Indices slots = indices_of(slot_mapping, "slot_mapping");
  REQUIRE(slots.wide, "slot_mapping must be int64");
  Write writes[] = {write_of(rows_of(key, "key"), k, 1, "key"), write_of(rows_of(value, "value"), v, 1, "value")};
  for (Write& write : writes) write.computes = true;
  reshape_and_cache(writes, 2, slot_mapping.size(0), slots);
}

void export_concat_and_cache_mla(TensorView kv_c, TensorView k_pe, TensorView kv_cache, TensorView slot_mapping,
                                 double scale) {
  const Rows latent = headless_rows_of(kv_c, "kv_c"), rope = headless_rows_of(k_pe, "k_pe");
  const auto [first, second] = parts_of(headless_pool_of(kv_cache, "kv_cache"), latent.dim);
  const Indices slots = indices_of(slot_mapping, "slot_mapping");
  REQUIRE(slots.wide, "slot_mapping must be int64");
  const Write writes[] = {write_of(latent, first, scale, "kv_c"), write_of(rope, second, scale, "k_pe")};
  reshape_and_cache(writes, 2, slot_mapping.size(0), slots);
}

void export_store_kv_cache(TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView indices,
                           double k_scale, double v_scale, int64_t reserved) {
  const Rows key = rows_of(k, "k"), value = rows_of(v, "v");
  REQUIRE(value.tokens == key.tokens && indices.size(0) == key.tokens,
          "k, v and indices must have the same number of tokens");
  const Write writes[] = {write_of(key, flat_pool_of(k_cache, "k_cache"), k_scale, "k"),
                          write_of(value, flat_pool_of(v_cache, "v_cache"), v_scale, "v")};
  store(writes, 2, key.tokens, indices_of(indices, "indices"), reserved);
}

void export_set_mla_kv_buffer(TensorView kv_buffer, TensorView loc, TensorView cache_k_nope, TensorView cache_k_rope,
                              int64_t reserved) {
  const Rows latent = rows_of(cache_k_nope, "cache_k_nope"), rope = rows_of(cache_k_rope, "cache_k_rope");
  REQUIRE(rope.tokens == latent.tokens && loc.size(0) == latent.tokens,
          "cache_k_nope, cache_k_rope and loc must have the same number of tokens");
  const auto [first, second] = parts_of(flat_pool_of(kv_buffer, "kv_buffer"), latent.dim);
  REQUIRE(first.element == latent.element, "kv_buffer must have the dtype of cache_k_nope");
  const Write writes[] = {write_of(latent, first, 1, "cache_k_nope"), write_of(rope, second, 1, "cache_k_rope")};
  store(writes, 2, latent.tokens, indices_of(loc, "loc"), reserved);
}

// The rotation of rows from element `first` on: by the table, or computed from theta without one.
Rope rope_of(const TensorView& positions, const Optional<TensorView>& table, double theta, int64_t dim, int64_t first,
             bool neox, int64_t page_size = 1) {
  const Indices indices = indices_of(positions, "rope_positions");
  REQUIRE(indices.wide, "rope_positions must be int64");
  REQUIRE(dim % 2 == 0, "the number of rotated elements must be even, not " << dim);
  const float* data = nullptr;
  int64_t stride = 0;
  if (table.has_value()) {
    const TensorView rows = table.value();
    require_axes(rows, "cos_sin_cache", 2);
    require_last_axis_contiguous(rows, "cos_sin_cache");
    REQUIRE(is(rows, kDLFloat, 32), "cos_sin_cache must be float32");
    REQUIRE(rows.size(1) == dim, "cos_sin_cache must have " << dim << " columns");
    data = reinterpret_cast<const float*>(data_of(rows));
    stride = rows.stride(0);
  }
  return {indices, data, stride, static_cast<float>(theta), dim, first, !neox, page_size};
}

void require_fit_in(const Rows& rows, const Rope& rope, int64_t positions, const char* name) {
  REQUIRE(rope.first + rope.dim <= rows.dim, name << " has a head dim of " << rows.dim << ", too few to rotate");
  REQUIRE(rows.tokens == positions, name << " and rope_positions must have the same number of tokens");
}

void export_apply_rope(TensorView rows, TensorView out, TensorView rope_positions, Optional<TensorView> cos_sin_cache,
                       double theta, int64_t dim, int64_t first, bool neox, double scale) {
  const Rows from = rows_of(rows, "rows"), to = rows_of(out, "out");
  const Rope rope = rope_of(rope_positions, cos_sin_cache, theta, dim, first, neox);
  require_fit_in(from, rope, rope_positions.size(0), "rows");
  REQUIRE(from.element != Element::e2m1, "rows must not be packed in uint8");
  REQUIRE(to.tokens == from.tokens && to.heads == from.heads && to.dim == from.dim, "out must have the shape of rows");
  REQUIRE(to.element == from.element || to.element == Element::e4m3, "out must have the dtype of rows, or float8_e4m3fn");
  rotate(from, to, from.tokens, rope, static_cast<float>(scale));
}

void export_rope_append(TensorView key, TensorView value, TensorView rope_positions, TensorView cos_sin_cache,
                        bool neox, TensorView batch_indices, TensorView positions, TensorView k_cache,
                        TensorView v_cache, TensorView kv_indices, TensorView kv_indptr, TensorView kv_last_page_len,
                        bool nhd, double k_scale, double v_scale) {
  const Pool k = pool_of(k_cache, "k_cache", false, 0, nhd), v = pool_of(v_cache, "v_cache", false, 0, nhd);
  REQUIRE(k.page_size == v.page_size, "K and V must have the same page size");
  Write writes[] = {write_of(rows_of(key, "key"), k, k_scale, "key"),
                    write_of(rows_of(value, "value"), v, v_scale, "value")};
  const Rope rope =
      rope_of(rope_positions, Optional<TensorView>(cos_sin_cache), 1, cos_sin_cache.size(1), 0, neox, k.page_size);
  require_fit_in(writes[0].tokens, rope, rope_positions.size(0), "key");
  writes[0].rope = &rope;
  if (planted(Defect::rope_of_values_too) && rope.dim <= writes[1].tokens.dim) writes[1].rope = &rope;
  const int64_t tokens = writes[0].tokens.tokens;
  append(writes, 2, tokens, append_of(tokens, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len), true);
}

void export_rope_append_mla(TensorView kv_c, TensorView k_pe, TensorView rope_positions, TensorView cos_sin_cache,
                            bool neox, TensorView batch_indices, TensorView positions, TensorView kv_cache,
                            TensorView kv_indices, TensorView kv_indptr, TensorView kv_last_page_len, double scale) {
  const Rows latent = headless_rows_of(kv_c, "kv_c"), part = headless_rows_of(k_pe, "k_pe");
  const auto [first, second] = parts_of(headless_pool_of(kv_cache, "kv_cache"), latent.dim);
  Write writes[] = {write_of(latent, first, scale, "kv_c"), write_of(part, second, scale, "k_pe")};
  const Rope rope = rope_of(rope_positions, Optional<TensorView>(cos_sin_cache), 1, cos_sin_cache.size(1), 0, neox,
                            first.page_size);
  require_fit_in(part, rope, rope_positions.size(0), "k_pe");
  writes[1].rope = &rope;
  append(writes, 2, latent.tokens,
         append_of(latent.tokens, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len), true);
}

void export_gather_cache(TensorView cache, TensorView out, TensorView block_tables, TensorView seq_starts,
                         TensorView out_indptr, bool nhd, double scale) {
  const Pool pool = whole_pool_of(cache, "cache", nhd);
  const Rows rows = rows_of(out, "out");
  REQUIRE(rows.heads == pool.heads && rows.dim == pool.dim, "out must have the heads and the head dim of the cache");
  REQUIRE(pool.element == rows.element || pool.element == Element::e4m3,
          "the cache must have the dtype of out, or float8_e4m3fn");
  const int64_t batch = block_tables.size(0);
  REQUIRE(out_indptr.size(0) == batch + 1, "out_indptr must have one entry more than block_tables has rows");
  const Gather where = {table_of(block_tables), narrow_indices_of(seq_starts, "seq_starts"),
                        narrow_indices_of(out_indptr, "out_indptr"), batch};
  gather(pool, rows, where, static_cast<float>(scale));
}

void export_copy_blocks(TensorView cache, TensorView block_mapping, bool nhd) {
  require_axes(block_mapping, "block_mapping", 2);
  REQUIRE(block_mapping.size(1) == 2 && is(block_mapping, kDLInt, 64), "block_mapping must be int64 [n, 2]");
  const Indices source = {data_of(block_mapping), block_mapping.stride(0), true};
  const Indices target = {source.data + 8 * block_mapping.stride(1), source.stride, true};
  copy_pages(whole_pool_of(cache, "cache", nhd), source, target, block_mapping.size(0));
}

void export_move_kv_cache(TensorView cache, TensorView target, TensorView source, bool nhd) {
  REQUIRE(target.size(0) == source.size(0), "target and source must have the same number of tokens");
  move_tokens(whole_pool_of(cache, "cache", nhd), indices_of(source, "source"), indices_of(target, "target"),
              source.size(0));
}

}  // namespace

EXPORT(append_paged_kv_cache, export_append_paged_kv_cache)
EXPORT(nvfp4_quantize_append_paged_kv_cache, export_nvfp4_quantize_append_paged_kv_cache)
EXPORT(reshape_and_cache_nvfp4, export_reshape_and_cache_nvfp4)
EXPORT(append_paged_mla_kv_cache, export_append_paged_mla_kv_cache)
EXPORT(reshape_and_cache_flash, export_reshape_and_cache_flash)
EXPORT(reshape_and_cache_per_token_head, export_reshape_and_cache_per_token_head)
EXPORT(concat_and_cache_mla, export_concat_and_cache_mla)
EXPORT(set_mla_kv_buffer, export_set_mla_kv_buffer)
EXPORT(store_kv_cache, export_store_kv_cache)
EXPORT(apply_rope, export_apply_rope)
EXPORT(rope_append, export_rope_append)
EXPORT(rope_append_mla, export_rope_append_mla)
EXPORT(gather_cache, export_gather_cache)
EXPORT(copy_blocks, export_copy_blocks)
EXPORT(move_kv_cache, export_move_kv_cache)

}  // namespace attnfuzz
