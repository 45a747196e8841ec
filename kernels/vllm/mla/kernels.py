"""Stand-ins for the kernels of an MLA layer that are compiled for GPUs, with the same contracts.

A file and line is that of vLLM 0.33.0.
"""

import math
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native import write_ops
from attnfuzz.kernels.native.ops import trtllm_batch_decode_with_kv_cache_mla
from attnfuzz.kernels.native.transform_ops import gather_cache
from attnfuzz.kernels.releases.flash_attention import VARLEN
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import MULTIPROCESSORS, current, entry

FA_VERSIONS: Final = (2, 4)
"""The versions of FlashAttention on a B200 (vllm_flash_attn/flash_attn_interface.py:52)."""


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: torch.Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    fa_version: int,
    return_softmax_lse: bool = False,
    out: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Stand in for FlashAttention on packed queries and keys (vllm_flash_attn/flash_attn_interface.py:215)."""
    assert fa_version in FA_VERSIONS
    assert output_scale is None, "outputs are not quantised"
    if out is None:
        out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32)
    current(VARLEN.name).launch(
        VARLEN,
        {
            "out": out,
            "lse": lse,
            "q": q,
            "k": k,
            "v": v,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k,
            "softmax_scale": softmax_scale,
            "causal": causal,
        },
    )
    return (out, lse) if return_softmax_lse else out


def _write(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    scale: torch.Tensor,
    *_: object,
) -> None:
    """Stand in for concat_and_cache_mla, whose last argument skips a scale of 1."""
    with outside():
        factor = scale.item()
    quantised = {} if kv_cache.dtype == kv_c.dtype else {"kv_cache_dtype": kv_cache_dtype, "scale": factor}
    arguments = {"kv_c": kv_c, "k_pe": k_pe, "kv_cache": kv_cache, "slot_mapping": slot_mapping, **quantised}
    current(WRITE.name).launch(WRITE, arguments)


WRITE: Final = Op("concat_and_cache_mla", write_ops.concat_and_cache_mla, frozenset({"kv_cache"}))


def copy_tokens(
    *,
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
    token_to_seq: torch.Tensor,
    num_tokens: int,
    seq_starts: torch.Tensor,
) -> None:
    """Copy token i of the first `num_tokens` of a chunk to row i of `dst`.

    It is token i - cu_seq_lens[r] + seq_starts[r] of request r = token_to_seq[i]. Nothing is copied for i >=
    cu_seq_lens[r + 1].
    """
    request = token_to_seq[:num_tokens].long()
    token = torch.arange(num_tokens)
    inside = token < cu_seq_lens[request + 1]
    request, token = request[inside], token[inside]
    # Each token is a separate request to the native kernel, so that it reads the table as vLLM's does.
    source = torch.empty(len(token), 1, dst.shape[1], dtype=dst.dtype)
    gather_cache(
        src_cache.unsqueeze(2),
        source,
        block_table[request],
        torch.arange(len(token) + 1, dtype=torch.int32),
        (token - cu_seq_lens[request] + seq_starts[request]).int(),
    )
    dst[token] = source[:, 0]


def gather(
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
    token_to_seq: torch.Tensor,
    num_tokens: int,
    kv_cache_dtype: str,
    scale: torch.Tensor,
    seq_starts: torch.Tensor,
) -> None:
    """Stand in for gather_and_maybe_dequant_cache on a cache that is not quantised."""
    del scale
    assert kv_cache_dtype == "auto", "caches are not quantised"
    current(GATHER.name).launch(
        GATHER,
        {
            "src_cache": src_cache,
            "dst": dst,
            "block_table": block_table,
            "cu_seq_lens": cu_seq_lens,
            "token_to_seq": token_to_seq,
            "num_tokens": num_tokens,
            "seq_starts": seq_starts,
        },
    )


GATHER: Final = Op("gather_and_maybe_dequant_cache", copy_tokens, frozenset({"dst"}))


def gather_on_rank(
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
    batch_size: int,
    seq_starts: torch.Tensor,
) -> None:
    """Stand in for cp_gather_cache, which copies each request's tokens from `seq_starts` on."""
    arguments = {
        "src_cache": src_cache,
        "dst": dst,
        "block_table": block_table[:batch_size],
        "cu_seq_lens": cu_seq_lens,
        "seq_starts": seq_starts,
    }
    current(GATHER_ON_RANK.name).launch(GATHER_ON_RANK, arguments)


def copy_rank_tokens(*, src_cache: torch.Tensor, dst: torch.Tensor, **rows: Any) -> None:
    """Copy tokens of each request from pages of `src_cache` [pages, slots, dim] to rows of `dst` [tokens, dim]."""
    gather_cache(src_cache.unsqueeze(2), dst.unsqueeze(1), **rows)


GATHER_ON_RANK: Final = Op("cp_gather_cache", copy_rank_tokens, frozenset({"dst"}))


def merge_states(
    *,
    output: torch.Tensor,
    output_lse: torch.Tensor | None = None,
    prefix_output: torch.Tensor,
    prefix_lse: torch.Tensor,
    suffix_output: torch.Tensor,
    suffix_lse: torch.Tensor,
    with_context: int,
) -> None:
    """Merge two attention states in fp32: outputs [tokens, heads, dim], LSE [heads, tokens] in base e.

    Rows from `with_context` on are copied from the suffix. An LSE of inf, which FlashAttention 2 returns for a row
    without keys, counts as -inf; two such rows give 0 and -inf (csrc/attention/merge_attn_states.cu).
    """
    states = [(prefix_output.float(), prefix_lse), (suffix_output.float(), suffix_lse)]
    lses = torch.stack([each.masked_fill(each == torch.inf, -torch.inf) for _, each in states])
    largest = lses.amax(dim=0)
    empty = largest == -torch.inf
    weights = (lses - largest.masked_fill(empty, 0)).exp()
    total = weights.sum(dim=0)
    shares = (weights / total.masked_fill(empty, 1)).transpose(1, 2).unsqueeze(-1)
    # As in vLLM's kernel, NaN in the output of a part without keys is not masked.
    sums = states[0][0] * shares[0] + states[1][0] * shares[1]
    merged = sums.masked_fill(empty.T.unsqueeze(-1), 0).to(output.dtype)
    merged_lse = largest + total.masked_fill(empty, 1).log()
    merged[with_context:] = suffix_output[with_context:].to(output.dtype)
    merged_lse[:, with_context:] = lses[1][:, with_context:]
    output.copy_(merged)
    if output_lse is not None:
        output_lse.copy_(merged_lse)


def merge(
    output: torch.Tensor,
    output_lse: torch.Tensor | None,
    prefix_output: torch.Tensor,
    prefix_lse: torch.Tensor,
    suffix_output: torch.Tensor,
    suffix_lse: torch.Tensor,
    prefill_tokens_with_context: int | None = None,
    output_scale: torch.Tensor | None = None,
) -> None:
    """Stand in for merge_attn_states, which vLLM uses on GPUs for head dims that are multiples of 8."""
    assert output_scale is None, "outputs are not quantised"
    arguments = {
        "output": output,
        "prefix_output": prefix_output,
        "prefix_lse": prefix_lse,
        "suffix_output": suffix_output,
        "suffix_lse": suffix_lse,
        "with_context": output.shape[0] if prefill_tokens_with_context is None else prefill_tokens_with_context,
    }
    if output_lse is not None:
        arguments["output_lse"] = output_lse
    current(MERGE.name).launch(MERGE, arguments)


MERGE: Final = Op("merge_attn_states", merge_states, frozenset({"output", "output_lse"}))


def _decode(
    *,
    query: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor | None = None,
    max_q_len: int | None = None,
    out: torch.Tensor,
    backend: str = "auto",
    enable_dcp: bool = False,
    cp_world: int = 1,
    cp_rank: int = 0,
    causal_seqlens_kv_global: torch.Tensor | None = None,
    **shared: Any,
) -> None:
    """Attend to latents as FlashInfer does with any of its kernels.

    Queries may be packed, [tokens, heads, dim]; those of request r are the rows from cum_seq_lens_q[r] on. Each packed
    query is a separate request to the native kernel: the last one of a request has all of its keys. Rows that belong to
    no request are not written.
    """
    del max_q_len
    if enable_dcp:
        assert backend == "cute-dsl"
        assert cum_seq_lens_q is None
        bounds = causal_seqlens_kv_global
        assert bounds is not None
        given = {"query": query, "block_tables": block_tables, "seq_lens": seq_lens, "out": out, **shared}
        _decode_on_rank(**given, ranks=cp_world, rank=cp_rank, bounds=bounds)
        return
    assert backend in ("auto", "trtllm-gen", "cute-dsl"), f"{backend} has no stand-in"
    if cum_seq_lens_q is None:
        if query.ndim - out.ndim == 1 == query.shape[1]:
            # FlashInfer before 0.6.7 requires this shape for single queries (vLLM 0.18.0: flashinfer_mla.py:185).
            out = out.unsqueeze(1)
        trtllm_batch_decode_with_kv_cache_mla(
            query=query, block_tables=block_tables, seq_lens=seq_lens, out=out, **shared
        )
        return
    counts = cum_seq_lens_q.diff()
    request = torch.repeat_interleave(torch.arange(len(counts)), counts)
    rows = torch.arange(int(cum_seq_lens_q[0]), int(cum_seq_lens_q[-1]))
    behind = cum_seq_lens_q[1:][request] - 1 - rows
    single = torch.empty(len(rows), 1, *out.shape[1:], dtype=out.dtype)
    trtllm_batch_decode_with_kv_cache_mla(
        query=query[rows].unsqueeze(1),
        block_tables=block_tables[request],
        seq_lens=(seq_lens[request] - behind).clamp(min=0).int(),
        out=single,
        **shared,
    )
    out[rows] = single[:, 0]


def _decode_on_rank(
    *,
    query: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    ranks: int,
    rank: int,
    bounds: torch.Tensor,
    **shared: Any,
) -> None:
    """Attend to the latents of a rank, which holds the positions i * ranks + rank (FlashInfer: mla/_core.py:4061).

    The last query of a request sees the positions below its bound, and each earlier one a position fewer. A row that
    sees none has zeros and an LSE of -inf. The LSE is in base e.
    """
    batch, length = query.shape[:2]
    if bounds.shape != (batch,):
        raise ValueError(f"causal_seqlens_kv_global must have shape ({batch},), got {tuple(bounds.shape)}")
    ends = bounds.unsqueeze(1) - length + 1 + torch.arange(length)
    seen = ((ends - rank + ranks - 1) // ranks).clamp(min=0).minimum(seq_lens[:batch].unsqueeze(1))
    rows, own = query.flatten(0, 1).unsqueeze(1), torch.arange(batch).repeat_interleave(length)
    single = torch.empty(len(rows), 1, *out.shape[2:], dtype=out.dtype)
    to_base_2 = torch.empty(len(rows), query.shape[2])
    trtllm_batch_decode_with_kv_cache_mla(
        query=rows,
        block_tables=block_tables[own],
        seq_lens=seen.flatten().int(),
        out=single,
        lse=to_base_2,
        **shared,
    )
    out.copy_(single.view(out.shape))
    lse.copy_((to_base_2 * math.log(2)).view(lse.shape))


DECODE: Final = Op(
    "trtllm_batch_decode_with_kv_cache_mla", _decode, frozenset({"out", "lse", "workspace_buffer"}), "flashinfer.mla"
)
"""FlashInfer's function of this name, which supports packed queries from 0.6.14 on."""


def join_halves(*, k: torch.Tensor, k_nope: torch.Tensor, k_pe: torch.Tensor) -> None:
    """Write k_nope [tokens, heads, nope] and k_pe [tokens, 1, rope] side by side to k [tokens, heads, nope + rope]."""
    k[..., : k_nope.shape[-1]] = k_nope
    k[..., k_nope.shape[-1] :] = k_pe


def concat(k: torch.Tensor, k_nope: torch.Tensor, k_pe: torch.Tensor) -> None:
    """Stand in for FlashInfer's concat_mla_k, used by layers with DeepSeek-V3's dims (mla_attention.py:3374)."""
    current(CONCAT.name).launch(CONCAT, {"k": k, "k_nope": k_nope, "k_pe": k_pe})


CONCAT: Final = Op("concat_mla_k", join_halves, frozenset({"k"}))


def replace_latent_kernels(backend: Any) -> None:
    """Install the stand-ins in the module of the backend, and in torch's namespaces of vLLM's kernels."""
    setattr(backend, DECODE.name, entry(DECODE.name))
    if hasattr(backend, "get_device_sm_count"):
        # flashinfer_mla.py:440
        backend.get_device_sm_count = lambda _device: MULTIPROCESSORS
    cache: Any = torch.ops._C_cache_ops  # noqa: SLF001 - the names of vLLM's libraries
    cache.concat_and_cache_mla, cache.gather_and_maybe_dequant_cache = _write, gather
    cache.cp_gather_cache = gather_on_rank
    own: Any = torch.ops.vllm
    own.flashinfer_concat_mla_k = concat


OPS: Final = (DECODE, WRITE, GATHER, GATHER_ON_RANK, MERGE, VARLEN, CONCAT)
"""The stand-ins. DECODE replaces the native decode, which has no packed queries."""
