"""Validity of cases: the rules that relate their fields, and the bounds that keep them runnable.

These rules hold for every backend. A backend's own limits are its Capability.
"""

import math
from collections.abc import Callable, Iterator
from enum import StrEnum

from attnfuzz.reference.arguments import ArgumentForm, EarlierUse, exclude_each_other
from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    Launch,
    Mask,
    Mode,
    OtherGroup,
    Request,
    Scales,
    Step,
    steps_in_chunks,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.nvfp4 import BLOCK, INTERLEAVED
from attnfuzz.reference.related import NotRelated, related
from attnfuzz.reference.shared_pools import MAX_PAGE_SIZE

MAX_BATCH = 1024
MAX_KV_LEN = 1 << 20
MAX_STEPS = 64
# Each chunk takes up to six guarded tensors of two mappings each, and Linux grants a process 65,530 by default.
MAX_CHUNKS = 512
MAX_TABLE_ENTRIES = 1 << 28
# 8 GiB: enough for element offsets above 2^32 in bf16, with which 32-bit offsets overflow.
MAX_POOL_BYTES = 1 << 33
# 512 GiB: the smallest address spaces have 39 bits.
MAX_POOL_ADDRESSES = 1 << 39
MAX_QUERY_BYTES = 1 << 33
MAX_QUERY_SCALE = 256.0
MAX_MASK_ENTRIES = 1 << 28
# About a minute of fp64 on one core.
MAX_PRODUCTS = 1 << 38

MAX_BACKEND_NAME = 4096
"""A name may be FILE.py:NAME, and a path has at most this many bytes."""

MOST_PAST = 64
"""Maximum number of failures that one case may ignore."""

_MOST_SHOWN = 200

_QUANTISED = (DType.FLOAT8_E4M3, DType.FLOAT4_E2M1)
_QUERY_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_MANTISSA_OF_POWERS = 0.5
_GraphKey = tuple[Mode, int, int]


class ImpossibleCase(ValueError):
    """A case that cannot exist. The message names the field, its value and the legal values."""

    def __init__(self, field: str, value: object, legal: str) -> None:
        shown = repr(value)
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN]}..."
        super().__init__(f"{field} is {shown}: {legal}")


def validate(case: Case) -> None:
    """Raise ImpossibleCase for the first rule that `case` breaks."""
    for field, value, low, high in _bounded(case):
        if not low <= value <= high:
            raise ImpossibleCase(field, value, f"must be at least {low} and at most {high}")
    validate_backend_name(case.backend)
    _validate_geometry(case.geometry)
    _validate_scales(case)
    for violation in TABLE.violations(case):
        raise ImpossibleCase(*violation)
    _validate_call(case)
    _validate_steps(case)
    _validate_size(case)
    _validate_past(case)
    if case.relation is not None:
        valid_related(case)


def _validate_past(case: Case) -> None:
    if len(case.past) > MOST_PAST:
        raise ImpossibleCase("past", len(case.past), f"must be {MOST_PAST} failures at most")
    for word in (word for each in case.past for word in (each.kind, each.place, each.kernel, each.mode)):
        if not word.isprintable() or len(word) > MAX_BACKEND_NAME:
            raise ImpossibleCase("past", word, f"must be words of {MAX_BACKEND_NAME} printable characters at most")


def validate_backend_name(name: str) -> None:
    """Raise ImpossibleCase unless `name` can be a backend's: it is looked up, printed, and part of paths."""
    if not name or not name.isprintable() or len(name) > MAX_BACKEND_NAME:
        legal = f"must be the name of a backend, of {MAX_BACKEND_NAME} printable characters at most"
        raise ImpossibleCase("backend", name, legal)


def _bounded(case: Case) -> Iterator[tuple[str, float, float, float]]:
    """Yield (field, value, lowest, highest) for every number that has its own bounds."""
    geometry, pages = case.geometry, case.pages
    yield "geometry.q_heads", geometry.q_heads, 1, 1024
    yield "geometry.kv_heads", geometry.kv_heads, 1, 1024
    yield "geometry.head_dim_qk", geometry.head_dim_qk, 1, 2048
    yield "geometry.head_dim_vo", geometry.head_dim_vo, 1, 1024
    yield "geometry.page_size", geometry.page_size, 1, MAX_PAGE_SIZE
    yield "geometry.window_left", geometry.window_left, -1, MAX_KV_LEN
    yield "geometry.window_right", geometry.window_right, -1, MAX_KV_LEN
    if geometry.latent is not None:
        yield "geometry.latent.rank", geometry.latent.rank, 1, 1024
        yield "geometry.latent.rope", geometry.latent.rope, 1, 1024
        yield "geometry.latent.nope", geometry.latent.nope, 1, 1024
        yield "geometry.latent.vo", geometry.latent.vo, 1, 1024
    yield "pages.spare", pages.spare, 0, 1 << 20
    yield "pages.hole", pages.hole, 0, 1 << 30
    yield "pages.table_slack", pages.table_slack, 0, 1 << 20
    yield "views.table_gap", case.views.table_gap, 0, 1 << 20
    yield "max_len_slack", case.max_len_slack, 0, MAX_KV_LEN
    yield "chunk_capacity", case.chunk_capacity, 1, 1 << 30
    yield "shared_keys.ranks", case.shared_keys.ranks, 2, 64
    yield "serving.budget", case.serving.budget, 0, 1 << 30
    yield "serving.shortage", case.serving.shortage, 0, 1 << 20
    yield "serving.seed", case.serving.seed, 0, 1 << 20
    yield "seed", case.seed, 0, (1 << 63) - 1
    yield "the number of steps", len(case.steps), 1, MAX_STEPS


def _validate_geometry(geometry: Geometry) -> None:
    if geometry.q_heads % geometry.kv_heads:
        legal = f"must be a multiple of kv_heads {geometry.kv_heads}"
        raise ImpossibleCase("geometry.q_heads", geometry.q_heads, legal)
    if geometry.dtype not in _QUERY_DTYPES:
        raise ImpossibleCase("geometry.dtype", geometry.dtype.value, f"must be one of {', '.join(_QUERY_DTYPES)}")
    if geometry.kv_dtype not in (geometry.dtype, *_QUANTISED):
        legal = f"must be that of the queries ({geometry.dtype}) or one of {', '.join(_QUANTISED)}"
        raise ImpossibleCase("geometry.kv_dtype", geometry.kv_dtype.value, legal)
    if geometry.kv_dtype is DType.FLOAT4_E2M1:
        for field, dim in (("head_dim_qk", geometry.head_dim_qk), ("head_dim_vo", geometry.head_dim_vo)):
            if dim % BLOCK:
                legal = f"must be a multiple of {BLOCK} for a {geometry.kv_dtype} KV cache"
                raise ImpossibleCase(f"geometry.{field}", dim, legal)
    if not (math.isfinite(geometry.soft_cap) and geometry.soft_cap >= 0):
        raise ImpossibleCase("geometry.soft_cap", geometry.soft_cap, "must be finite, and positive or 0 for none")
    latent = geometry.latent
    if latent is None:
        return
    for field, dim, due in (
        ("kv_heads", geometry.kv_heads, 1),
        ("head_dim_qk", geometry.head_dim_qk, latent.rank + latent.rope),
        ("head_dim_vo", geometry.head_dim_vo, latent.rank),
    ):
        if dim != due:
            raise ImpossibleCase(f"geometry.{field}", dim, f"must be {due} with this latent")


def _validate_scales(case: Case) -> None:
    for field, value in (("softmax", case.scales.softmax), ("k", case.scales.k), ("v", case.scales.v)):
        if not math.isfinite(value):
            raise ImpossibleCase(f"scales.{field}", value, "must be finite: no weights follow from infinite logits")
        if value <= 0 and field != "softmax" and case.scales.granularity is not Granularity.TENSOR:
            raise ImpossibleCase(f"scales.{field}", value, "must be positive with tensors of scales")
    _validate_granularity(case)
    _validate_queries(case)


def _validate_granularity(case: Case) -> None:
    geometry, scales = case.geometry, case.scales
    granularity, blocks = scales.granularity, geometry.kv_dtype is DType.FLOAT4_E2M1
    if blocks is not (granularity is Granularity.BLOCK):
        legal = f"must be {Granularity.BLOCK}" if blocks else f"must not be {Granularity.BLOCK}"
        raise ImpossibleCase("scales.granularity", granularity.value, f"{legal} for a {geometry.kv_dtype} KV cache")
    if scales.blocks is BlockScales.SWIZZLED and not may_be_swizzled(geometry, granularity):
        legal = f"must be {BlockScales.LINEAR} unless page slots and value blocks are multiples of {INTERLEAVED}"
        raise ImpossibleCase("scales.blocks", scales.blocks.value, legal)
    if granularity is Granularity.TENSOR:
        return
    if geometry.kv_dtype is geometry.dtype or geometry.latent is not None:
        without = "latents" if geometry.latent else "a KV cache of the queries' dtype"
        legal = f"must be {Granularity.TENSOR} for {without}"
        raise ImpossibleCase("scales.granularity", granularity.value, legal)


def _validate_queries(case: Case) -> None:
    queries, low, high = case.queries, 1 / MAX_QUERY_SCALE, MAX_QUERY_SCALE
    if not (low <= queries.scale <= high and is_power_of_two(queries.scale)):
        legal = f"must be a power of two from {low:g} to {high:g}, so that a query and its quotient are exact"
        raise ImpossibleCase("queries.scale", queries.scale, legal)
    if queries.kept and not may_keep_queries(case.geometry, case.scales):
        legal = "must be false unless the KV cache is FP8 and its scales and head dims are powers of two"
        raise ImpossibleCase("queries.kept", True, legal)


def may_keep_queries(geometry: Geometry, scales: Scales) -> bool:
    """Return whether a server may leave its queries unquantised although its KV cache is quantised.

    It may dequantise the cache to that dtype, which is exact for scales that are powers of two, by a kernel whose head
    dims are powers of two as well (vLLM 0.33.0: v1/attention/backends/flashinfer.py:2507).
    """
    numbers = (scales.k, scales.v, geometry.head_dim_qk, geometry.head_dim_vo)
    return geometry.kv_dtype is DType.FLOAT8_E4M3 and all(map(is_power_of_two, numbers))


def is_power_of_two(number: float) -> bool:
    """Return whether a number is a power of two, or the inverse of one."""
    return math.frexp(number)[0] == _MANTISSA_OF_POWERS


def may_be_swizzled(geometry: Geometry, granularity: Granularity) -> bool:
    """Return whether the scales of values may be swizzled: slots of a page, and blocks of a row, in whole groups."""
    whole_pages = geometry.page_size % INTERLEAVED == 0
    return granularity is Granularity.BLOCK and whole_pages and geometry.head_dim_vo % (BLOCK * INTERLEAVED) == 0


def _validate_call(case: Case) -> None:
    kinds: dict[str, tuple[tuple[StrEnum, ...], type[StrEnum]]] = {
        "arguments": (case.arguments, ArgumentForm),
        "life": (case.life, EarlierUse),
    }
    for name, (chosen, kind) in kinds.items():
        if chosen != tuple(each for each in kind if each in chosen):
            raise ImpossibleCase(name, list(chosen), "must be distinct, and in the order of their declaration")
    if exclude_each_other(case.arguments):
        raise ImpossibleCase("arguments", list(case.arguments), "must have at most one form for each argument")
    for form in case.arguments:
        if form in _CONDITIONS and not _CONDITIONS[form](case):
            raise ImpossibleCase("arguments", form.value, "is not possible with the other fields")


def takes(case: Case, form: ArgumentForm) -> bool:
    """Return whether `form` is possible in `case`, besides its other forms."""
    return (form not in _CONDITIONS or _CONDITIONS[form](case)) and not exclude_each_other((*case.arguments, form))


def _sees_all_keys(case: Case) -> bool:
    """Return whether there is a window, and it is at least as long as all keys."""
    return 0 <= max(case.slot_lengths().values(), default=0) <= case.geometry.window_left + 1 > 0


_CONDITIONS: dict[ArgumentForm, Callable[[Case], bool]] = {
    ArgumentForm.SCALE_DEFAULT: lambda case: case.scales.softmax == 1,
    ArgumentForm.K_SCALE_DEFAULT: lambda case: case.scales.k == 1,
    ArgumentForm.V_SCALE_DEFAULT: lambda case: case.scales.v == 1,
    ArgumentForm.WINDOW_DEFAULT: lambda case: case.geometry.window_left < 0,
    ArgumentForm.WINDOW_FAR: _sees_all_keys,
    ArgumentForm.SOFT_CAP_DEFAULT: lambda case: case.geometry.soft_cap == 0,
    ArgumentForm.SOFT_CAP_NEGATIVE: lambda case: case.geometry.soft_cap == 0,
    ArgumentForm.CALL_WITHOUT_QUERIES: lambda case: any(
        not request.q_len for step in case.steps for request in step.requests
    ),
    ArgumentForm.SINKS_16_BITS: lambda case: case.geometry.sinks,
    # The layout does not allow planning only part of a padded batch.
    ArgumentForm.LSE_LAYOUT: lambda case: not any(step.padded for step in case.steps),
}
"""The conditions of forms: the argument must exist, and have its default where it is omitted, or no effect."""


def _validate_steps(case: Case) -> None:
    captured: set[_GraphKey] = set()
    for index, step in enumerate(case.steps):
        _validate_step(step, f"steps[{index}]")
        _validate_launch(step, f"steps[{index}]", captured)
        if steps_in_chunks([step], case.geometry):
            _validate_chunks(step, f"steps[{index}]", case)
        if case.geometry.latent is not None and not step.mode.speculative:
            _validate_latent_prefill(step, f"steps[{index}]")
    if not any(step.requests for step in case.steps):
        legal = "at least one step must run with requests: eager or a replay"
        raise ImpossibleCase("steps", f"{len(case.steps)} captures or idle steps", legal)
    slots = {request.slot for step in case.steps for request in step.requests}
    if slots != set(range(len(slots))):
        raise ImpossibleCase("the set of slots", sorted(slots), f"must be 0 to {len(slots) - 1} without gaps")


def _validate_step(step: Step, field: str) -> None:
    stride = step.tokens_per_request
    if step.mode is Mode.DECODE and stride != 1:
        raise ImpossibleCase(f"{field}.tokens_per_request", stride, "must be 1 for decode")
    if step.mode.speculative and not 1 <= stride <= MAX_BATCH:
        raise ImpossibleCase(f"{field}.tokens_per_request", stride, f"must be 1 to {MAX_BATCH} for {step.mode}")
    if not step.mode.speculative and stride != 0:
        raise ImpossibleCase(f"{field}.tokens_per_request", stride, f"must be 0 for {step.mode}")
    if len(step.requests) > MAX_BATCH:
        raise ImpossibleCase(f"{field}.requests", f"{len(step.requests)} requests", f"must be {MAX_BATCH} at most")
    seen: set[int] = set()
    for position, request in enumerate(step.requests):
        if request.slot in seen:
            legal = "must differ between the requests of a step"
            raise ImpossibleCase(f"{field}.requests[{position}].slot", request.slot, legal)
        seen.add(request.slot)
        _validate_request(request, step, f"{field}.requests[{position}]")
    _validate_padding(step, field)


def _validate_request(request: Request, step: Step, field: str) -> None:
    stride = step.tokens_per_request
    if request.slot < 0:
        raise ImpossibleCase(f"{field}.slot", request.slot, "must be 0 or more")
    if not 0 <= request.kv_len <= MAX_KV_LEN:
        raise ImpossibleCase(f"{field}.kv_len", request.kv_len, f"must be 0 to {MAX_KV_LEN}")
    if step.mode.uniform and request.q_len != stride:
        raise ImpossibleCase(f"{field}.q_len", request.q_len, f"must be tokens_per_request {stride} in {step.mode}")
    if step.mode is Mode.DRAFT_EXTEND and not 1 <= request.q_len <= stride:
        legal = f"must be 1 to tokens_per_request {stride}, being an accept length"
        raise ImpossibleCase(f"{field}.q_len", request.q_len, legal)
    if step.mode is Mode.DRAFT_DECODE and request.kv_len <= request.q_len:
        legal = f"must be more than q_len {request.q_len} in {step.mode}: a draft model decodes after a prefix"
        raise ImpossibleCase(f"{field}.kv_len", request.kv_len, legal)
    if not 0 <= request.q_len <= MAX_KV_LEN:
        raise ImpossibleCase(f"{field}.q_len", request.q_len, f"must be 0 to {MAX_KV_LEN}")


def _validate_padding(step: Step, field: str) -> None:
    """Check that the padded query holds every request, and that a uniform layout or a graph has whole requests."""
    stride, padded = step.tokens_per_request, step.padded_tokens
    if padded > MAX_KV_LEN:
        raise ImpossibleCase(f"{field}.padded_tokens", padded, f"must be {MAX_KV_LEN} at most")
    whole = step.mode.uniform or step.launch is not Launch.EAGER
    if whole and step.mode.speculative:
        if padded % stride:
            legal = f"must be a multiple of tokens_per_request {stride} in {step.mode}, {step.launch}"
            raise ImpossibleCase(f"{field}.padded_tokens", padded, legal)
        if padded > MAX_BATCH * stride:
            raise ImpossibleCase(f"{field}.padded_tokens", padded, f"must be {MAX_BATCH} requests at most")
        needed = len(step.requests) * stride
    else:
        needed = step.tokens
    least = 0 if step.idle and step.launch is Launch.EAGER else max(needed, 1)
    if padded < least:
        raise ImpossibleCase(f"{field}.padded_tokens", padded, f"must be at least {least}, for all requests")


def _validate_launch(step: Step, field: str, captured: set[_GraphKey]) -> None:
    """Check `step` against the graphs `captured` before it, and add its own."""
    key = (step.mode, step.padded_tokens, step.tokens_per_request)
    if step.launch is not Launch.EAGER and not step.mode.speculative:
        raise ImpossibleCase(f"{field}.launch", step.launch.value, f"must be eager: graphs do not hold {step.mode}")
    if step.launch is Launch.CAPTURE:
        if step.requests:
            legal = "must be none: a capture is recorded on padding alone"
            raise ImpossibleCase(f"{field}.requests", f"{len(step.requests)} requests", legal)
        for mode, _, stride in captured:
            if mode is step.mode and stride != step.tokens_per_request:
                legal = (
                    f"must be {stride} as in the earlier capture of {mode}: a server drafts a fixed number of tokens"
                )
                raise ImpossibleCase(f"{field}.tokens_per_request", step.tokens_per_request, legal)
        captured.add(key)
        return
    if step.launch is Launch.REPLAY and key not in captured:
        legal = (
            f"needs an earlier capture of {step.mode} with padded_tokens {step.padded_tokens} "
            f"and tokens_per_request {step.tokens_per_request}"
        )
        raise ImpossibleCase(f"{field}.launch", step.launch.value, legal)
    if step.tokens == 0 and not step.idle:
        legal = "must be none, or at least one of them must have query tokens"
        raise ImpossibleCase(f"{field}.requests", f"{len(step.requests)} requests", legal)


def _validate_chunks(step: Step, field: str, case: Case) -> None:
    if step.mode is Mode.CHUNKED_PREFILL and case.chunk_capacity < len(step.requests):
        legal = f"must be at least {len(step.requests)}, a token for each request of {field}"
        raise ImpossibleCase("chunk_capacity", case.chunk_capacity, legal)
    chunks = step.chunks(case.chunk_capacity)
    if chunks > MAX_CHUNKS:
        legal = f"must be higher: it cuts {field} into {chunks} chunks, of {MAX_CHUNKS} at most"
        raise ImpossibleCase("chunk_capacity", case.chunk_capacity, legal)


def _validate_latent_prefill(step: Step, field: str) -> None:
    """Check that there are enough keys: a latent prefill attends to its own new tokens, then to a prefix."""
    for position, request in enumerate(step.requests):
        if request.kv_len < request.q_len:
            legal = f"must be at least q_len {request.q_len} in {step.mode} with latents"
            raise ImpossibleCase(f"{field}.requests[{position}].kv_len", request.kv_len, legal)


def _validate_size(case: Case) -> None:
    """Bound memory and time, because a case file must not exhaust the machine."""
    geometry = case.geometry
    lengths = case.slot_lengths().values()
    owned = sum(-(-length // geometry.page_size) for length in lengths)
    values = 0 if geometry.latent else geometry.head_dim_vo
    if case.pages.other_group is not OtherGroup.NONE:
        # The other group's pages have the same number of bytes, and hold at least half as many tokens.
        owned += sum(2 * -(-length // geometry.page_size) for length in lengths)
    elements = (owned + case.pages.spare + 1) * geometry.page_size * geometry.kv_heads * (geometry.head_dim_qk + values)
    if elements * geometry.kv_dtype.itemsize > MAX_POOL_BYTES:
        legal = f"must be {MAX_POOL_BYTES} bytes at most: shorten kv_len, or lower pages.spare"
        raise ImpossibleCase("the KV pool", f"{elements * geometry.kv_dtype.itemsize} bytes", legal)
    addresses = elements * geometry.kv_dtype.itemsize // (owned + case.pages.spare + 1) * case.pages.hole
    if addresses > MAX_POOL_ADDRESSES:
        legal = f"must be lower: it spans {addresses} bytes, of {MAX_POOL_ADDRESSES} at most"
        raise ImpossibleCase("pages.hole", case.pages.hole, legal)
    columns = -(-max(lengths, default=0) // geometry.page_size) + case.pages.table_slack + case.views.table_gap
    rows = max(step.padded_batch for step in case.steps)
    if rows * columns > MAX_TABLE_ENTRIES:
        legal = f"must be {MAX_TABLE_ENTRIES} at most: lower pages.table_slack or views.table_gap"
        raise ImpossibleCase("the page table", f"{rows * columns} entries", legal)
    row_bytes = geometry.q_heads * max(geometry.head_dim_qk, geometry.head_dim_vo) * geometry.dtype.itemsize
    tokens = max(step.padded_tokens for step in case.steps)
    if tokens * row_bytes > MAX_QUERY_BYTES:
        raise ImpossibleCase("the query", f"{tokens * row_bytes} bytes", f"must be {MAX_QUERY_BYTES} at most")
    if case.mask is not Mask.CAUSAL:
        _validate_mask_size(case)
    if products(case) > MAX_PRODUCTS:
        raise ImpossibleCase("the work", f"{products(case)} products", f"must be {MAX_PRODUCTS} at most")


def _validate_mask_size(case: Case) -> None:
    pairs = max(sum(request.q_len * request.kv_len for request in step.requests) for step in case.steps)
    if pairs > MAX_MASK_ENTRIES:
        raise ImpossibleCase("the masks of a step", f"{pairs} entries", f"must be {MAX_MASK_ENTRIES} at most")


def valid_related(case: Case) -> Case:
    """Return the related case. Raises ImpossibleCase if it is the same or cannot exist."""
    assert case.relation is not None
    try:
        other = related(case).case
        validate(other)
    except NotRelated as reason:
        raise ImpossibleCase("relation", case.relation.value, f"{reason}") from None
    except ImpossibleCase as bound:
        raise ImpossibleCase("relation", case.relation.value, f"its other case is impossible: {bound}") from None
    return other


def products(case: Case) -> int:
    """Return the number of multiplications in the attention of real requests, as a measure of a case's size."""
    geometry = case.geometry
    pairs = sum(request.q_len * request.kv_len for step in case.steps for request in step.requests)
    return pairs * geometry.q_heads * (geometry.head_dim_qk + geometry.head_dim_vo)
