"""The native kernels of sparse attention as functions.

Arguments are named after those of DeepGEMM, FlashMLA and vLLM. Queries of the indexer are float8_e4m3fn, metadata is
int32, scores are float32, and all tensors are contiguous in their last axis, on the CPU. Indices, lengths and tables
are trusted as the libraries' kernels trust them (TRAPS.md).
"""

import torch

from attnfuzz.kernels.native import build


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_scales: torch.Tensor,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Score packed keys, like DeepGEMM's function of this name with clean_logits.

    q [rows, heads, dim], kv [n, dim], kv_scales [n], weights float32 [rows, heads], logits [rows, n]. Row r has the
    scores of keys cu_seq_len_k_start[r] to cu_seq_len_k_end[r], and -inf elsewhere.
    """
    build.load().dense_logits(q, kv, kv_scales, weights, cu_seq_len_k_start, cu_seq_len_k_end, logits)


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    logits: torch.Tensor,
    *,
    page_size: int,
    next_n: int,
) -> None:
    """Score the keys of requests in pages, like DeepGEMM's function of this name with clean_logits.

    q [requests * next_n, heads, dim], kv_cache uint8 [pages, page_size * (dim + 4)], weights float32 [requests *
    next_n, heads], block_table [requests, pages per request], logits [requests * next_n, width]. The last row of a
    request sees all of its context_lens keys, and each row before it one key less; -inf is behind them.
    """
    build.load().paged_logits(q, kv_cache, weights, context_lens, block_table, logits, page_size, next_n)


def top_k_per_row(
    scores: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, row_starts: torch.Tensor | None = None
) -> None:
    """List the positions of the highest scores, like vLLM's top_k_per_row_decode and _prefill.

    scores [rows, width], indices [rows, k]. Row r has lengths[r] scores from row_starts[r] (0 without it) on. Positions
    count from there, and -1 follows those of a row of less than k.
    """
    build.load().sparse_top_k(scores, row_starts, lengths, indices)


def convert_positions_to_slots(
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    slots: torch.Tensor,
    *,
    page_size: int,
) -> None:
    """Make slots of positions, like vLLM's triton_convert_req_index_to_global_index; -1 stays.

    positions and slots [rows, k], requests [rows] the rows of block_table [requests, pages per request].
    """
    build.load().positions_to_slots(positions, requests, block_table, slots, page_size)


def convert_positions_to_offsets(positions: torch.Tensor, offsets: torch.Tensor, slots: torch.Tensor) -> None:
    """Add offsets[r] to the positions of row r, like FlashInfer's top_k_ragged_transform; -1 stays."""
    build.load().positions_to_offsets(positions, offsets, slots)


def sparse_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    out: torch.Tensor,
    softmax_scale: float,
    *,
    values: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_keys: torch.Tensor | None = None,
    extra_values: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    value_indices: torch.Tensor | None = None,
) -> None:
    """Attend to the keys of a list for each query, like FlashMLA's sparse prefill and decode.

    query [rows, heads, dim], keys [slots, kv_heads, dim] or uint8 [slots, 656] for packed latents, values [slots,
    kv_heads, value dim] or None for the first part of keys, indices [rows, k], out [rows, heads, value dim], lse
    float32 [rows, heads] in base 2. Entries below 0, or at the number of slots and above, are skipped; with topk_length
    [rows], those behind it are not read. A second pool and its lists have the names that begin with `extra`. Values are
    at the slots of value_indices, laid out as indices, if given.
    """
    build.load().sparse_attention(
        query,
        keys,
        values,
        indices,
        topk_length,
        extra_keys,
        extra_values,
        extra_indices,
        extra_topk_length,
        attn_sink,
        out,
        lse,
        softmax_scale,
        value_indices,
    )


def indexer_k_quant_and_cache(
    k: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor, *, page_size: int, powers: bool
) -> None:
    """Quantise keys into the indexer's cache, like vLLM's function of this name; negative slots are skipped.

    k [tokens, dim], kv_cache uint8 [pages, page_size * (dim + 4)], slot_mapping int64 [tokens]. A key's scale is its
    largest magnitude, but at least 1e-4, over 448, with `powers` (scale_fmt "ue8m0") rounded up to a power of two.
    """
    build.load().write_index_keys(k, slot_mapping, kv_cache, page_size, powers)


def save_partial_states(
    kv: torch.Tensor,
    score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Save the states of new tokens for a compressor, like vLLM's save_partial_states_cpu.

    kv and score float32 [tokens, width], ape [ratio, width], positions and slot_mapping int64 [tokens], state_cache
    [blocks, block size, 2 * width]. A token's row is its kv, then score + ape[position % ratio]; negative slots are
    skipped.
    """
    build.load().save_states(kv, score, ape, positions, state_cache, slot_mapping)


def compress_norm_rope_store_indexer(
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    rms_norm_weight: torch.Tensor,
    rms_norm_eps: float,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    *,
    page_size: int,
    compress_ratio: int,
) -> None:
    """Compress groups of tokens into keys of the indexer's cache, like vLLM's function of this name.

    gather_slots int64 [tokens, window] are the rows of state of each token's window, -1 for none. A token that ends a
    group and has a kv_slot_mapping of 0 or more writes its key; cos_sin_cache float32 [positions, dim / 2].
    """
    build.load().compress(
        state_cache,
        gather_slots,
        positions,
        kv_slot_mapping,
        rms_norm_weight,
        rms_norm_eps,
        cos_sin_cache,
        kv_cache,
        page_size,
        compress_ratio,
    )
