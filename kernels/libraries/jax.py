"""JAX: jax.nn.dot_product_attention as XLA compiles it for the CPU, and pallas' paged attention, interpreted.

XLA compiles for each shape: batches are padded to a few shapes, as JAX servers do, and compiled code is kept on disk.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries.geometries import few_geometries
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.requests import dense_requests
from attnfuzz.kernels.libraries.torch_sdpa import visible
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

_RATIO = 4
"""Ratio of the lengths and batch sizes that code is compiled for."""

_MOST_LOGITS, _MOST_INTERPRETED = 1 << 24, 1 << 18

# One thread: workers run side by side.
_ONE_THREAD = (
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 --xla_cpu_parallel_codegen_split_count=1"
)


@cache
def _jax() -> Any:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    import jax  # noqa: PLC0415 - a library is imported by workers alone

    config: Any = jax.config
    config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return jax


def _to_jax(tensor: torch.Tensor) -> Any:
    """View the same memory as an array of JAX, if it is aligned to 64 bytes; a copy otherwise."""
    return _jax().dlpack.from_dlpack(tensor.contiguous())


def _rung(number: int) -> int:
    """Return the smallest power of the ratio that is not below `number`."""
    rung = 1
    while rung < number:
        rung *= _RATIO
    return rung


def _padded(rows: Iterable[torch.Tensor], batch: int, length: int, like: torch.Tensor) -> torch.Tensor:
    """Pad the rows of each request with zeros to a tensor [batch, length, ...]."""
    result = like.new_zeros(batch, length, *like.shape[-2:])
    for index, some in enumerate(rows):
        result[index, : len(some)] = some
    return result


def _for_dot_product(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    window_left: int,
    **paged: Any,
) -> Mapping[str, Any]:
    """Make a padded batch, the lengths in it, and a mask: JAX's causal one aligns the first query to the first key."""
    requests = dense_requests(k_cache=k_cache, v_cache=v_cache, **paged)
    batch = _rung(len(requests))
    queries = _rung(max(request.q_len for request in requests))
    keys = _RATIO * _rung(-(-max(request.kv_len for request in requests) // _RATIO))
    if batch * queries * keys * query.shape[1] > _MOST_LOGITS:
        raise Unsupported(f"a padded batch of more than {_MOST_LOGITS} logits, which are all in memory at once")
    mask = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
    for request in requests:
        seen = visible(request.q_len, request.kv_len, window_left)
        mask[request.index, 0, : request.q_len, : request.kv_len] = seen
    lengths = torch.zeros(2, batch, dtype=torch.int32)
    lengths[:, : len(requests)] = torch.tensor([[r.q_len for r in requests], [r.kv_len for r in requests]])
    return {
        "queries": _padded((query[request.rows] for request in requests), batch, queries, query),
        "keys": _padded((request.key for request in requests), batch, keys, k_cache),
        "values": _padded((request.value for request in requests), batch, keys, v_cache),
        "mask": mask,
        "query_lengths": lengths[0],
        "key_lengths": lengths[1],
    }


@cache
def _compiled_dot_product(*, residual: bool) -> Callable[..., Any]:
    jax = _jax()
    function: Callable[..., Any] = jax.jit(partial(jax.nn.dot_product_attention, return_residual=residual))
    return function


def _dot_product(*, out: torch.Tensor, **arguments: Any) -> None:
    _write_rows((out,), _answer(**arguments, residual=False), arguments["cum_seq_lens_q"])


def _dot_product_residual(*, out: torch.Tensor, lse: torch.Tensor, **arguments: Any) -> None:
    _write_rows((out, lse), _answer(**arguments, residual=True), arguments["cum_seq_lens_q"])


def _answer(
    *,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    query_lengths: torch.Tensor,
    key_lengths: torch.Tensor,
    scale: float,
    residual: bool,
    **_: Any,
) -> tuple[Any, ...]:
    """Compute the padded output, and the log-sum-exp if asked for a `residual`."""
    answer = _compiled_dot_product(residual=residual)(
        _to_jax(queries),
        _to_jax(keys),
        _to_jax(values),
        mask=_to_jax(mask),
        scale=scale,
        query_seq_lengths=_to_jax(query_lengths),
        key_value_seq_lengths=_to_jax(key_lengths),
    )
    return answer if residual else (answer,)


def _write_rows(targets: tuple[torch.Tensor, ...], answer: tuple[Any, ...], offsets: torch.Tensor) -> None:
    """Write the requests' rows of a padded answer one after another."""
    for target, array in zip(targets, answer, strict=True):
        padded = torch.utils.dlpack.from_dlpack(array)
        for index, (first, end) in enumerate(pairwise(offsets.tolist())):
            target[first:end] = padded[index, : end - first]


def _for_paged(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    **_: Any,
) -> Mapping[str, Any]:
    """Make a pool of the batch's own pages, padded like its table. Queries have the scale: the function takes none.

    Slots that hold no token are zero, as in a new pool of JAX: the kernel multiplies them by a weight of 0
    (docs/findings/jax-paged-nan-past-the-end.md).
    """
    page = k_cache.shape[1]
    counts = [-(-kv_len // page) for kv_len in seq_lens.tolist()]
    batch, width = _rung(len(counts)), _rung(max(counts))
    used, renamed = torch.cat([block_tables[row, :count] for row, count in enumerate(counts)]).unique(
        return_inverse=True
    )
    pages = _rung(len(used))
    tables = torch.zeros(batch, width, dtype=torch.int32)
    lengths = torch.zeros(batch, dtype=torch.int32)
    lengths[: len(counts)] = seq_lens
    for row, own in enumerate(renamed.split(counts)):
        tables[row, : len(own)] = own
    if batch * width * page * query.shape[1] > _MOST_INTERPRETED:
        raise Unsupported(f"more than {_MOST_INTERPRETED} logits, which are interpreted")
    queries = query.new_zeros(batch, *query.shape[1:])
    queries[: len(query)] = query * scale
    held = _held(tables[: len(counts)], lengths[: len(counts)], pages, page)
    return {
        "queries": queries,
        "key_pages": _pool(k_cache, used, pages, held),
        "value_pages": _pool(v_cache, used, pages, held),
        "tables": tables,
        "lengths": lengths,
    }


def _held(tables: torch.Tensor, lengths: torch.Tensor, pages: int, page: int) -> torch.Tensor:
    """Mark the slots [pages, page] that hold a token."""
    held = torch.zeros(pages, page, dtype=torch.bool)
    for table, length in zip(tables.tolist(), lengths.tolist(), strict=True):
        for index, at in enumerate(table[: -(-length // page)]):
            held[at, : length - index * page] = True
    return held


def _pool(cache: torch.Tensor, used: torch.Tensor, pages: int, held: torch.Tensor) -> torch.Tensor:
    """Copy those pages of a cache [kv_heads, pages, page_size, head_dim], with zeros in all slots but the held ones."""
    pool = cache.new_zeros(pages, *cache.shape[1:])
    pool[: len(used)] = cache[used.long()]
    return pool.masked_fill(~held[..., None, None], 0.0).permute(2, 0, 1, 3).contiguous()


def _paged(
    *,
    out: torch.Tensor,
    queries: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    soft_cap: float,
) -> None:
    _jax()
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention  # noqa: PLC0415

    attended = paged_attention(
        _to_jax(queries),
        _to_jax(key_pages),
        _to_jax(value_pages),
        _to_jax(tables),
        _to_jax(lengths),
        k_splits=min(_RATIO, tables.shape[1]),
        interpret=True,
        attn_logits_soft_cap=soft_cap or None,
    )
    out.copy_(torch.utils.dlpack.from_dlpack(attended)[: len(out)])


_FP32 = NoiseModel.fp32_arithmetic()

_NOISE = {
    DType.FLOAT32: _FP32,
    # The weights are divided by their sum, then rounded to the dtype of V (jax/_src/nn/functions.py,
    # `_dot_product_attention_core`), so that the largest one is rounded too.
    DType.BFLOAT16: structs.replace(
        _FP32, probabilities=ROUNDOFF[torch.bfloat16], peak=ROUNDOFF[torch.bfloat16], logits=2.0**-23
    ),
}
# An epsilon is added to the sum of the weights, which is 1 or more (paged_attention.py, `l_next[..., None] + eps`).
_PAGED_NOISE = structs.replace(_FP32, bias=2.0**-23)

_SHARED: dict[str, Any] = {"extra": "jax", "packages": {"jax": "0.10", "jaxlib": "0.10"}}

_DENSE = Capability(
    modes=Mode.of_kernels(),
    # float16 does not compile on a CPU (docs/findings/jax-float16-jit.md).
    buckets=few_geometries((DType.BFLOAT16, DType.FLOAT32), windows=True),
    edges=UNSAID_FACTORS,
)

JAX_BACKENDS = (
    LibraryBackend(
        function=_dot_product,
        arrange=_for_dot_product,
        label="jax:dot_product_attention",
        capability=_DENSE,
        noise_models=_NOISE,
        **_SHARED,
    ),
    LibraryBackend(
        function=_dot_product_residual,
        arrange=_for_dot_product,
        label="jax:dot_product_attention_residual",
        variant_of="jax:dot_product_attention",
        capability=_DENSE,
        contract=Contract(lse=LseBase.E),
        noise_models=_NOISE,
        **_SHARED,
    ),
    LibraryBackend(
        function=_paged,
        arrange=_for_paged,
        label="jax:pallas_paged_attention",
        capability=Capability(
            modes=(Mode.DECODE,),
            buckets=few_geometries(
                (DType.FLOAT32,), heads=((1, 1), (4, 2)), head_dims=(16, 64), page_sizes=(16,), soft_caps=True
            ),
            patience=4.0,
        ),
        noise_model=_PAGED_NOISE,
        **_SHARED,
    ),
)
