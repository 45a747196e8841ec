"""KV lengths are lengths, none longer than stated; packed keys lie where lengths and offsets say."""

from collections.abc import Iterator

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties.wording import and_others, listed
from attnfuzz.kernels.entry_points.entry_point import Breach
from attnfuzz.kernels.entry_points.forms import tensor_of
from attnfuzz.kernels.entry_points.spans import integers

_UNSIGNED = "FlashInfer docstring of seq_lens: a uint32 1D tensor"
_LONGEST = "FlashInfer docstrings of max_seq_len and max_kv_len: max sequence length for kv_cache"
_CUMULATIVE = "FlashInfer docstrings of cum_seq_lens_kv: cumulative sequence length for kv_cache or key/value"
_MIRRORS = "FlashInfer, _validate_cpu_seq_lens, and docstring of q_seq_lens_cpu: a trusted mirror"


def breaches(call: Attention) -> Iterator[Breach]:
    """Lengths below 0 or beyond the stated maximum, offsets of other lengths, and keys that are not there.

    No length is too short: 0 is legal, and so are fewer keys than queries, whose first rows then see none.
    """
    negative = [request for request, span in enumerate(call.spans) if span.kv_len < 0]
    if negative:
        length = call.spans[negative[0]].kv_len
        text = (
            f"seq_lens[{negative[0]}] is {length}{and_others(negative)}: no length, and read as the unsigned number "
            f"that it is documented to be, {length % (1 << 32)} keys"
        )
        yield Breach(("seq_lens",), text, _UNSIGNED, negative[0])
    yield from _packed(call)
    yield from _cumulative(call)
    yield from _mirrors(call)
    long = [request for request, span in enumerate(call.spans) if span.kv_len > call.max_kv.value]
    if long:
        text = (
            f"seq_lens[{long[0]}] is {call.spans[long[0]].kv_len}, but {call.max_kv.name} is {call.max_kv.value}"
            f"{and_others(long)}: grids and scratch follow from the stated maximum"
        )
        yield Breach(("seq_lens", call.max_kv.name), text, _LONGEST, long[0])


def _packed(call: Attention) -> Iterator[Breach]:
    """Keys of a request that lie outside of the tensors of keys and values."""
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
            f"cum_seq_lens_kv and seq_lens put the keys of request {outside[0]} in rows {span.first_key} to "
            f"{span.first_key + span.kv_len - 1}, but {listed(names)} {'have' if len(names) > 1 else 'has'} "
            f"{rows}{and_others(outside)}: they are read out of bounds"
        )
        yield Breach(("cum_seq_lens_kv", "seq_lens", *names), text, _CUMULATIVE, outside[0])


def _cumulative(call: Attention) -> Iterator[Breach]:
    """Cumulative KV lengths that are not those of the lengths."""
    if call.cum_kv is None:
        return
    ends = integers(call.arguments[call.cum_kv])
    if ends and ends[0] != 0:
        yield Breach((call.cum_kv,), f"{call.cum_kv} starts at {ends[0]}: it is no sum of lengths", _CUMULATIVE, 0)
    told = min(len(ends) - 1, len(call.spans))
    differing = [b for b in range(told) if call.spans[b].inside and ends[b + 1] - ends[b] != call.spans[b].kv_len]
    if differing:
        at = differing[0]
        text = (
            f"{call.cum_kv} gives request {at} {ends[at + 1] - ends[at]} keys, seq_lens[{at}] is "
            f"{call.spans[at].kv_len}{and_others(differing)}: which of them counts is the kernel's choice"
        )
        yield Breach((call.cum_kv, "seq_lens"), text, _CUMULATIVE, at)


def _mirrors(call: Attention) -> Iterator[Breach]:
    """Copies of the lengths on the CPU that are alone, or do not say what the lengths do."""
    given = {name: call.arguments.get(name) for name in ("q_seq_lens_cpu", "kv_seq_lens_cpu")}
    if list(given.values()).count(None) == 1:
        yield Breach(tuple(given), "q_seq_lens_cpu and kv_seq_lens_cpu must be given together", _MIRRORS)
        return
    lengths = {"q_seq_lens_cpu": [s.q_len for s in call.spans], "kv_seq_lens_cpu": [s.kv_len for s in call.spans]}
    for name, mirror in given.items():
        if mirror is not None and not mirror.is_meta and integers(mirror) != lengths[name]:
            text = f"{name} is {integers(mirror)}, the lengths of the requests are {lengths[name]}"
            yield Breach((name,), text, _MIRRORS)
