"""Checks that query rows and keys are divided among requests, without gaps, within the stated maxima.

Packed keys must lie at the stated lengths and offsets.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.entry_point import Breach, and_others, listed
from attnfuzz.kernels.meaning.forms import tensor_of
from attnfuzz.kernels.meaning.spans import integers

_ROWS = "FlashInfer docstring of q_len_per_req: query has batch_size * q_len_per_req rows"
_CUM_Q = (
    "FlashInfer docstring of cum_seq_lens_q (MLA decode): it starts with 0, ends at query.size(0) and is monotonically "
    "non-decreasing"
)
_LONGEST_Q = "FlashInfer docstrings of max_q_len: max sequence length for query; under-estimation is invalid"
_UNSIGNED = "FlashInfer docstring of seq_lens: a uint32 1D tensor"
_LONGEST_KV = "FlashInfer docstrings of max_seq_len and max_kv_len: max sequence length for kv_cache"
_CUM_KV = "FlashInfer docstrings of cum_seq_lens_kv: cumulative sequence length for kv_cache or key/value"
_MIRRORS = "FlashInfer, _validate_cpu_seq_lens, and docstring of q_seq_lens_cpu: a trusted mirror"


def queries(call: Attention) -> Iterator[Breach]:
    """Yield incomplete requests, invalid cumulative lengths, and requests beyond the stated maximum.

    Rows behind the last request are padding, which needs no answer.
    """
    rows = call.query_rows
    if call.cum_q is None:
        if call.q_len and "q_len_per_req" in call.batch_from and rows % call.q_len:
            text = (
                f"query has {rows} rows, no multiple of q_len_per_req {call.q_len}: the last {rows % call.q_len} of "
                "them are left unwritten"
            )
            yield Breach(call.batch_from, text, _ROWS)
    else:
        yield from _cumulative_q(call, call.cum_q)
    if call.max_q is not None:
        long = [request for request, span in enumerate(call.spans) if span.q_len > call.max_q.value]
        if long:
            text = (
                f"request {long[0]} has {call.spans[long[0]].q_len} queries, but {call.max_q.name} is "
                f"{call.max_q.value}{and_others(long)}: queries beyond the maximum may be skipped"
            )
            yield Breach((call.max_q.name, call.cum_q or call.query), text, _LONGEST_Q, long[0])


def _cumulative_q(call: Attention, name: str) -> Iterator[Breach]:
    ends, rows = integers(call.arguments[name])[: call.batch + 1], call.query_rows
    if ends and ends[0] != 0:
        yield Breach((name,), f"{name} starts at {ends[0]}: not a sum of q lengths", _CUM_Q, 0)
    falls = [request for request in range(len(ends) - 1) if ends[request + 1] < ends[request]]
    if falls:
        at = falls[0]
        text = f"{name} falls from {ends[at]} to {ends[at + 1]} at request {at}{and_others(falls)}"
        yield Breach((name,), f"{text}: it has a q length below 0", _CUM_Q, at)
    beyond = [request for request in range(len(ends) - 1) if ends[request + 1] > rows]
    if beyond:
        at = beyond[0]
        text = (
            f"{name} puts request {at} in rows {ends[at]} to {ends[at + 1] - 1}, but {call.query} has {rows} rows"
            f"{and_others(beyond)}: they are read past the end of {call.query}, and written past that of out"
        )
        yield Breach((name, call.query), text, _CUM_Q, at)


def keys(call: Attention) -> Iterator[Breach]:
    """Yield lengths below 0 or beyond the stated maximum, inconsistent offsets, and keys that do not exist.

    No length is too short: 0 is legal, and so are fewer keys than queries, whose first rows then see none.
    """
    negative = [request for request, span in enumerate(call.spans) if span.kv_len < 0]
    if negative:
        length = call.spans[negative[0]].kv_len
        text = (
            f"{call.lengths}[{negative[0]}] is {length}{and_others(negative)}: read as the unsigned number that "
            f"the docstring promises, it is {length % (1 << 32)} keys"
        )
        yield Breach((call.lengths,), text, _UNSIGNED, negative[0])
    yield from _packed(call)
    yield from _cumulative_kv(call)
    yield from _mirrors(call)
    long = [request for request, span in enumerate(call.spans) if span.kv_len > call.max_kv.value]
    if long:
        text = (
            f"{call.lengths}[{long[0]}] is {call.spans[long[0]].kv_len}, but {call.max_kv.name} is {call.max_kv.value}"
            f"{and_others(long)}: grid and scratch sizes follow from the stated maximum"
        )
        yield Breach((call.lengths, call.max_kv.name), text, _LONGEST_KV, long[0])


def _packed(call: Attention) -> Iterator[Breach]:
    """Yield requests whose keys lie outside the tensors of keys and values."""
    if call.pool is not None:
        return
    names = call.packed_keys
    rows = min(tensor_of(call.arguments, name).shape[0] for name in names)
    outside = [
        request
        for request, span in enumerate(call.spans)
        if span.kv_len > 0 and not 0 <= span.first_key <= rows - span.kv_len
    ]
    if outside:
        span = call.spans[outside[0]]
        text = (
            f"{listed(call.key_places)} {'put' if len(call.key_places) > 1 else 'puts'} the keys of request "
            f"{outside[0]} in rows {span.first_key} to {span.first_key + span.kv_len - 1}, but {listed(names)} "
            f"{'have' if len(names) > 1 else 'has'} "
            f"{rows}{and_others(outside)}: they are read out of bounds"
        )
        yield Breach((*call.key_places, *names), text, _CUM_KV, outside[0])


def _cumulative_kv(call: Attention) -> Iterator[Breach]:
    """Yield cumulative KV lengths that contradict the lengths."""
    if call.cum_kv is None:
        return
    ends = integers(call.arguments[call.cum_kv])
    if ends and ends[0] != 0:
        yield Breach((call.cum_kv,), f"{call.cum_kv} starts at {ends[0]}: not a sum of lengths", _CUM_KV, 0)
    count = min(len(ends) - 1, len(call.spans))
    if call.in_pages and _counts_pages(call, ends[: count + 1]):
        return
    differing = [b for b in range(count) if call.spans[b].inside and ends[b + 1] - ends[b] != call.spans[b].kv_len]
    if differing:
        at = differing[0]
        text = (
            f"{call.cum_kv} gives request {at} {ends[at + 1] - ends[at]} keys, {call.lengths}[{at}] is "
            f"{call.spans[at].kv_len}{and_others(differing)}: which one is used depends on the kernel"
        )
        yield Breach((call.cum_kv, call.lengths), text, _CUM_KV, at)


def _counts_pages(call: Attention, ends: Sequence[int]) -> bool:
    """Return whether cumulative KV lengths count the pages of each request.

    Some callers do so (vLLM 0.26.0, v1/attention/backends/flashinfer.py:1302, and FlashInfer's own tests of trtllm-gen,
    test_trtllm_gen_attention.py): its kernels for paged KV caches read seq_lens instead (kernelParams.h, ptrSeqLensKv).
    """
    assert call.pool is not None
    page = call.pool.page_size
    return all(
        end - begin == -(-span.kv_len // page) for (begin, end), span in zip(pairwise(ends), call.spans, strict=False)
    )


def _mirrors(call: Attention) -> Iterator[Breach]:
    """Yield copies of the lengths on the CPU that are incomplete or contradict the lengths."""
    given = {name: call.arguments.get(name) for name in ("q_seq_lens_cpu", "kv_seq_lens_cpu")}
    if list(given.values()).count(None) == 1:
        yield Breach(tuple(given), "q_seq_lens_cpu and kv_seq_lens_cpu must be given together", _MIRRORS)
        return
    lengths = {"q_seq_lens_cpu": [s.q_len for s in call.spans], "kv_seq_lens_cpu": [s.kv_len for s in call.spans]}
    for name, mirror in given.items():
        if mirror is not None and not mirror.is_meta and integers(mirror) != lengths[name]:
            text = f"{name} is {integers(mirror)}, the lengths of the requests are {lengths[name]}"
            yield Breach((name,), text, _MIRRORS)
