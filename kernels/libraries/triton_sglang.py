"""SGLang's Triton kernels of attention, interpreted on the CPU: decode, extend, and its unified extend.

The backend classes of SGLang that this project runs (kernels/sglang) launch FlashInfer's kernels. These are the kernels
of its `--attention-backend triton`, on arguments made as that backend makes them.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.libraries.geometries import few_geometries
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.interpreted import DTYPES, check_size, import_sources, import_triton, no_interpreter
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

_OPS = "sglang.kernels.ops.attention"
_MOST_SPLITS = 8
"""Parts into which a decode splits the keys (SGLang 0.5.23, --triton-attention-num-kv-splits)."""

_TILE = 32


@cache
def _kernels() -> tuple[Any, Any]:
    """Import the modules of decode and extend."""
    import_triton()

    def no(*_: object, **__: object) -> bool:
        return False

    modules = import_sources(
        "sglang",
        (f"{_OPS}.score_mod", f"{_OPS}.decode_attention", f"{_OPS}.extend_attention"),
        {
            "sglang.srt.environ": {"envs": None},
            "sglang.srt.utils": {
                "get_device_core_count": no,
                "is_cuda": no,
                "is_gfx95_supported": no,
                "is_gfx1250_supported": no,
                "is_hip": no,
            },
        },
    )
    return modules[f"{_OPS}.decode_attention"], modules[f"{_OPS}.extend_attention"]


def _slots(block_tables: torch.Tensor, page_size: int, request: int, positions: range) -> torch.Tensor:
    """Return the slots of a request's tokens in the pool, int64."""
    at = torch.arange(positions.start, positions.stop)
    return block_tables[request].long()[at // page_size] * page_size + at % page_size


def _listed(block_tables: torch.Tensor, page_size: int, spans: Sequence[range]) -> dict[str, torch.Tensor]:
    """List the slots of each request's span of tokens, one after another, with their offsets."""
    offsets = [0, *accumulate(len(span) for span in spans)]
    slots = [_slots(block_tables, page_size, request, span) for request, span in enumerate(spans)]
    # The empty tensor is for a batch without requests.
    return {
        "kv_indptr": torch.tensor(offsets, dtype=torch.int32),
        "kv_indices": torch.cat([*slots, torch.empty(0, dtype=torch.int64)]),
    }


def _flat(cache: torch.Tensor) -> torch.Tensor:
    """View the pool as slots of tokens: SGLang's has pages of one token."""
    return cache.reshape(-1, *cache.shape[2:])


def _for_decode(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    window_left: int,
    **_: Any,
) -> Mapping[str, Any]:
    """Arrange as TritonAttnBackend.init_forward_metadata: a window is the last tokens, a request has its own splits."""
    batch, heads, _dim = query.shape
    kv_lens = seq_lens.tolist()
    spans = [range(max(kv_len - window_left - 1, 0) if window_left >= 0 else 0, kv_len) for kv_len in kv_lens]
    check_size(programs=batch * heads * _MOST_SPLITS, tiles=heads * sum(-(-len(span) // _TILE) for span in spans))
    shape = (batch, heads, _MOST_SPLITS)
    return {
        **_listed(block_tables, k_cache.shape[1], spans),
        "key": _flat(k_cache),
        "value": _flat(v_cache),
        "partial": torch.full((*shape, v_cache.shape[3]), torch.nan),
        "partial_lse": torch.full(shape, torch.nan),
        "splits": torch.tensor([1 + index % _MOST_SPLITS for index in range(batch)], dtype=torch.int32),
    }


def _decode(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    splits: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
    soft_cap: float,
) -> None:
    decode, _extend = _kernels()
    decode.decode_attention_fwd(
        query,
        key,
        value,
        out,
        kv_indptr,
        kv_indices,
        partial,
        partial_lse,
        splits,
        _MOST_SPLITS,
        scale,
        1.0,
        1.0,
        logit_cap=soft_cap,
        sinks=sinks,
    )


def _for_extend(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    **_: Any,
) -> Mapping[str, Any]:
    """Arrange the cached tokens by slots, and the new ones as they come out of the projections."""
    q_lens, kv_lens = _lengths(query, seq_lens, cum_seq_lens_q)
    page = k_cache.shape[1]
    key, value = _flat(k_cache), _flat(v_cache)
    spans = [range(kv_len - q_len, kv_len) for q_len, kv_len in zip(q_lens, kv_lens, strict=True)]
    new = _listed(block_tables, page, spans)["kv_indices"]
    return {
        **_listed(block_tables, page, [range(span.start) for span in spans]),
        "key": key,
        "value": value,
        "new_key": key[new],
        "new_value": value[new],
    }


def _extend(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    new_key: torch.Tensor,
    new_value: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    max_q_len: int,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
) -> None:
    _decode_module, extend = _kernels()
    extend.extend_attention_fwd(
        query,
        new_key,
        new_value,
        out,
        key,
        value,
        cum_seq_lens_q,
        kv_indptr,
        kv_indices,
        None,
        True,
        None,
        max_q_len,
        1.0,
        1.0,
        sm_scale=scale,
        logit_cap=soft_cap,
        sliding_window_size=window_left,
        sinks=sinks,
    )


def _for_unified(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    window_left: int,
    **_: Any,
) -> Mapping[str, Any]:
    """Arrange all tokens by slots, with the number of cached ones."""
    q_lens, kv_lens = _lengths(query, seq_lens, cum_seq_lens_q)
    prefixes = [kv_len - q_len for q_len, kv_len in zip(q_lens, kv_lens, strict=True)]
    lengths = torch.tensor(prefixes, dtype=torch.int32)
    return {
        **_listed(block_tables, k_cache.shape[1], [range(kv_len) for kv_len in kv_lens]),
        "key": _flat(k_cache),
        "value": _flat(v_cache),
        "prefix_lens": lengths,
        "window_start": torch.zeros_like(lengths) if window_left >= 0 else None,
    }


def _unified(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    window_start: torch.Tensor | None,
    max_q_len: int,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
) -> None:
    _decode_module, extend = _kernels()
    extend.extend_attention_fwd_unified(
        query,
        out,
        key,
        value,
        1.0,
        1.0,
        cum_seq_lens_q,
        kv_indptr,
        kv_indices,
        prefix_lens,
        max_q_len,
        sm_scale=scale,
        logit_cap=soft_cap,
        sliding_window_size=window_left,
        sinks=sinks,
        window_start_pos=window_start,
    )


def _lengths(query: torch.Tensor, seq_lens: torch.Tensor, cum_seq_lens_q: torch.Tensor) -> tuple[list[int], list[int]]:
    """Count queries and keys of each request. Raises Unsupported if there are too many."""
    q_lens, kv_lens = [end - first for first, end in pairwise(cum_seq_lens_q.tolist())], seq_lens.tolist()
    heads = query.shape[1]
    blocks = [-(-q_len // _TILE) for q_len in q_lens]
    tiles = sum(rows * -(-kv_len // _TILE) for rows, kv_len in zip(blocks, kv_lens, strict=True))
    check_size(programs=heads * sum(blocks), tiles=heads * tiles)
    return q_lens, kv_lens


_CAPABILITY = Capability(
    modes=Mode.of_kernels(),
    buckets=few_geometries(DTYPES, windows=True, sinks=True, soft_caps=True),
    # The keys of new tokens are among a request's (SGLang 0.5.23, ForwardBatch.seq_lens).
    empty_kv=False,
    kv_shorter_than_q=False,
    patience=4.0,
    edges=UNSAID_FACTORS,
)
_SHARED: dict[str, Any] = {
    "extra": "triton",
    "why_not": no_interpreter,
    "packages": {"triton": "3.6", "sglang": "0.5.23"},
    "alone": frozenset({"sglang"}),
    "noise_models": {
        DType.FLOAT32: NoiseModel.fp32_arithmetic(),
        # The weights are converted to the dtype of V for the second product (decode_attention.py, extend_attention.py:
        # `p.to(v.dtype)`).
        DType.FLOAT16: NoiseModel.rounded_probabilities(torch.float16),
    },
}

SGLANG_BACKENDS = (
    LibraryBackend(
        function=_decode,
        arrange=_for_decode,
        writes=frozenset({"partial", "partial_lse"}),
        label="triton:sglang_decode",
        capability=structs.replace(_CAPABILITY, modes=(Mode.DECODE,)),
        **_SHARED,
    ),
    LibraryBackend(
        function=_extend, arrange=_for_extend, label="triton:sglang_extend", capability=_CAPABILITY, **_SHARED
    ),
    LibraryBackend(
        function=_unified, arrange=_for_unified, label="triton:sglang_extend_unified", capability=_CAPABILITY, **_SHARED
    ),
)
