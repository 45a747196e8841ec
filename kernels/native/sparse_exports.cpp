// The functions for Python of sparse attention.
#include "exported.h"
#include "sparse.h"
#include "tensors.h"

namespace attnfuzz {
namespace {

IndexCache index_cache_of(const TensorView& tensor, int64_t page_size) {
  require_axes(tensor, "kv_cache", 2);
  require_last_axis_contiguous(tensor, "kv_cache");
  REQUIRE(is(tensor, kDLUInt, 8), "kv_cache must be uint8");
  REQUIRE(page_size > 0 && tensor.size(1) % page_size == 0 && tensor.size(1) / page_size > 4,
          "kv_cache has pages of " << tensor.size(1) << " bytes, which are not " << page_size << " keys and scales");
  return {data_of(tensor), tensor.stride(0), page_size, tensor.size(1) / page_size - 4};
}

IndexQueries index_queries_of(const TensorView& query, const TensorView& weights) {
  const Rows rows = rows_of(query, "q");
  REQUIRE(rows.element == Element::e4m3, "q must be float8_e4m3fn");
  return {rows, statistics_of(weights, "weights", rows)};
}

Scores scores_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 2);
  require_last_axis_contiguous(tensor, name);
  REQUIRE(is(tensor, kDLFloat, 32), name << " must be float32");
  return {data_of(tensor), tensor.size(0), tensor.size(1), tensor.stride(0)};
}

Lists lists_of(const TensorView& tensor, const char* name) {
  require_axes(tensor, name, 2);
  require_last_axis_contiguous(tensor, name);
  REQUIRE(is(tensor, kDLInt, 32), name << " must be int32");
  return {reinterpret_cast<int32_t*>(data_of(tensor)), tensor.size(0), tensor.size(1), tensor.stride(0)};
}

Lengths optional_lengths_of(const Optional<TensorView>& tensor, const char* name) {
  return tensor.has_value() ? lengths_of(tensor.value(), name) : Lengths{};
}

void export_dense_logits(TensorView q, TensorView k, TensorView k_scales, TensorView weights, TensorView starts,
                         TensorView ends, TensorView logits) {
  const IndexQueries queries = index_queries_of(q, weights);
  require_axes(k, "k", 2);
  require_last_axis_contiguous(k, "k");
  const Rows keys = {data_of(k), element_of(k, "k"), k.size(0), 1, k.size(1), k.stride(0), 0};
  REQUIRE(keys.element == Element::e4m3 && keys.dim == queries.rows.dim, "k must be float8_e4m3fn with the dim of q");
  require_axes(k_scales, "k_scales", 1);
  require_last_axis_contiguous(k_scales, "k_scales");
  REQUIRE(is(k_scales, kDLFloat, 32), "k_scales must be float32");
  const Scores scores = scores_of(logits, "logits");
  REQUIRE(scores.rows == queries.rows.tokens && scores.columns == keys.tokens,
          "logits must have a row for each query and a column for each key");
  dense_logits(queries, keys, reinterpret_cast<const float*>(data_of(k_scales)), lengths_of(starts, "starts"),
               lengths_of(ends, "ends"), scores);
}

void export_paged_logits(TensorView q, TensorView kv_cache, TensorView weights, TensorView lengths, TensorView table,
                         TensorView logits, int64_t page_size, int64_t next_n) {
  const IndexQueries queries = index_queries_of(q, weights);
  const IndexCache cache = index_cache_of(kv_cache, page_size);
  REQUIRE(cache.dim == queries.rows.dim, "kv_cache has keys of " << cache.dim << " elements, q of " << queries.rows.dim);
  REQUIRE(next_n > 0 && queries.rows.tokens % next_n == 0, "q must have " << next_n << " rows for each request");
  const Scores scores = scores_of(logits, "logits");
  REQUIRE(scores.rows == queries.rows.tokens, "logits must have a row for each query");
  paged_logits(queries, cache, next_n, lengths_of(lengths, "context_lens"), queries.rows.tokens / next_n,
               table_of(table), scores);
}

void export_top_k(TensorView scores, Optional<TensorView> starts, TensorView lengths, TensorView indices) {
  const Scores rows = scores_of(scores, "scores");
  const Lists lists = lists_of(indices, "indices");
  REQUIRE(lists.rows == rows.rows, "indices must have a row for each row of scores");
  top_k(rows, optional_lengths_of(starts, "starts"), lengths_of(lengths, "lengths"), lists);
}

void require_same_lists(const Lists& one, const Lists& other) {
  REQUIRE(one.rows == other.rows && one.length == other.length, "both lists must have the same shape");
}

void export_positions_to_slots(TensorView positions, TensorView requests, TensorView table, TensorView slots,
                               int64_t page_size) {
  const Lists from = lists_of(positions, "positions"), to = lists_of(slots, "slots");
  require_same_lists(from, to);
  REQUIRE(page_size > 0, "page_size must be above 0");
  to_slots(from, lengths_of(requests, "requests"), table_of(table), page_size, to);
}

void export_positions_to_offsets(TensorView positions, TensorView offsets, TensorView out) {
  const Lists from = lists_of(positions, "positions"), to = lists_of(out, "out");
  require_same_lists(from, to);
  to_offsets(from, lengths_of(offsets, "offsets"), to);
}

// Packed latents are [slots, 656] of uint8, and plain ones the keys and, in their first part, the values.
SparseKeys keys_of(const TensorView& keys, const Optional<TensorView>& values, int64_t value_dim, const Lists& lists,
                   const Optional<TensorView>& counts) {
  SparseKeys made{};
  made.packed = is(keys, kDLUInt, 8);
  made.lists = lists;
  made.counts = optional_lengths_of(counts, "counts");
  if (made.packed) {
    require_axes(keys, "keys", 2);
    require_last_axis_contiguous(keys, "keys");
    REQUIRE(keys.size(1) == 656, "keys must have slots of 656 bytes");
    made.keys = made.values = {data_of(keys), Element::e4m3, keys.size(0), 1, 576, keys.stride(0), 0};
    made.values.dim = 512;
    return made;
  }
  made.keys = float_rows_of(keys, "keys");
  made.values = values.has_value() ? float_rows_of(values.value(), "values") : made.keys;
  if (!values.has_value()) made.values.dim = value_dim;
  return made;
}

void export_sparse_attention(TensorView query, TensorView keys, Optional<TensorView> values, TensorView slots,
                             Optional<TensorView> counts, Optional<TensorView> second_keys,
                             Optional<TensorView> second_values, Optional<TensorView> second_slots,
                             Optional<TensorView> second_counts, Optional<TensorView> sinks, TensorView out,
                             Optional<TensorView> lse, double scale, Optional<TensorView> value_slots) {
  const Rows queries = float_rows_of(query, "query"), outputs = float_rows_of(out, "out");
  SparseKeys first = keys_of(keys, values, outputs.dim, lists_of(slots, "slots"), counts);
  if (value_slots.has_value()) {
    first.value_lists = lists_of(value_slots.value(), "value_slots");
    REQUIRE(values.has_value() && !first.packed, "value_slots needs values");
    REQUIRE(first.value_lists.rows == first.lists.rows && first.value_lists.length == first.lists.length &&
                first.value_lists.stride == first.lists.stride,
            "value_slots must have the shape and strides of slots");
  }
  SparseKeys second{};
  if (second_keys.has_value()) {
    REQUIRE(second_slots.has_value(), "second_slots must be given with second_keys");
    second = keys_of(second_keys.value(), second_values, outputs.dim, lists_of(second_slots.value(), "second_slots"),
                     second_counts);
    REQUIRE(second.packed == first.packed && second.keys.heads == first.keys.heads, "both pools must have one format");
  }
  require_fit(queries, outputs, first.keys.heads, first.keys.dim, first.values.dim);
  const Scalars scalars = scalars_of(scale, 1, -1, false, sinks, queries.heads);
  sparse_attention(queries, first, second, scalars.logit_scale, scalars.sinks, outputs,
                   statistics_of(lse, "lse", queries));
}

void export_write_index_keys(TensorView k, TensorView slots, TensorView kv_cache, int64_t page_size, bool powers) {
  require_axes(k, "k", 2);
  require_last_axis_contiguous(k, "k");
  const Rows keys = {data_of(k), element_of(k, "k"), k.size(0), 1, k.size(1), k.stride(0), 0};
  const IndexCache cache = index_cache_of(kv_cache, page_size);
  REQUIRE(is_float(keys.element) && keys.dim == cache.dim, "k must be float, with the dim of kv_cache");
  require_axes(slots, "slot_mapping", 1);
  REQUIRE(is(slots, kDLInt, 64) && slots.size(0) == keys.tokens, "slot_mapping must be int64, one for each key");
  write_index_keys(keys, {data_of(slots), slots.stride(0), true}, cache, powers);
}

Indices wide_indices_of(const TensorView& tensor, const char* name, int64_t count) {
  require_axes(tensor, name, 1);
  REQUIRE(is(tensor, kDLInt, 64) && tensor.size(0) == count, name << " must be int64, one for each token");
  return {data_of(tensor), tensor.stride(0), true};
}

// [blocks, rows, columns] with dense rows, as [blocks * rows, columns].
Scores states_of(const TensorView& tensor) {
  require_axes(tensor, "state_cache", 3);
  require_last_axis_contiguous(tensor, "state_cache");
  REQUIRE(is(tensor, kDLFloat, 32), "state_cache must be float32");
  return {data_of(tensor), tensor.size(0) * tensor.size(1), tensor.size(2), tensor.size(2)};
}

void export_save_states(TensorView kv, TensorView score, TensorView ape, TensorView positions, TensorView state_cache,
                        TensorView slots) {
  const Scores values = scores_of(kv, "kv"), scores = scores_of(score, "score"), places = scores_of(ape, "ape");
  const Scores states = states_of(state_cache);
  REQUIRE(scores.rows == values.rows && scores.columns == values.columns && places.columns == values.columns,
          "kv, score and ape must have the same width");
  REQUIRE(states.columns == 2 * values.columns, "state_cache must have rows of kv and score");
  save_states(values, scores, places, wide_indices_of(positions, "positions", values.rows),
              wide_indices_of(slots, "slot_mapping", values.rows), states);
}

void export_compress(TensorView state_cache, TensorView gather_slots, TensorView positions, TensorView slots,
                     TensorView weight, double epsilon, TensorView cos_sin, TensorView kv_cache, int64_t page_size,
                     int64_t ratio) {
  require_axes(gather_slots, "gather_slots", 2);
  require_last_axis_contiguous(gather_slots, "gather_slots");
  REQUIRE(is(gather_slots, kDLInt, 64), "gather_slots must be int64");
  const Windows windows = {reinterpret_cast<const int64_t*>(data_of(gather_slots)), gather_slots.size(0),
                           gather_slots.size(1), gather_slots.stride(0)};
  const IndexCache cache = index_cache_of(kv_cache, page_size);
  const Scores turns = scores_of(cos_sin, "cos_sin_cache");
  require_axes(weight, "rms_norm_weight", 1);
  require_last_axis_contiguous(weight, "rms_norm_weight");
  REQUIRE(is(weight, kDLFloat, 32) && weight.size(0) == cache.dim, "rms_norm_weight must be float32, one for each dim");
  REQUIRE(cache.dim % 4 == 0 && turns.columns == cache.dim / 2, "cos_sin_cache must have columns for half of the dims");
  compress(states_of(state_cache), windows, wide_indices_of(positions, "positions", windows.rows),
           wide_indices_of(slots, "kv_slot_mapping", windows.rows), reinterpret_cast<const float*>(data_of(weight)),
           static_cast<float>(epsilon), turns, cache, ratio);
}

}  // namespace

EXPORT(save_states, export_save_states)
EXPORT(compress, export_compress)
EXPORT(dense_logits, export_dense_logits)
EXPORT(paged_logits, export_paged_logits)
EXPORT(sparse_top_k, export_top_k)
EXPORT(positions_to_slots, export_positions_to_slots)
EXPORT(positions_to_offsets, export_positions_to_offsets)
EXPORT(sparse_attention, export_sparse_attention)
EXPORT(write_index_keys, export_write_index_keys)

}  // namespace attnfuzz
