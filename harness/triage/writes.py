"""Writes into a KV cache: whether a call names the slot, and has the values, of each of its step's new tokens.

Of a copy, it is whether it names the tokens that the step wants.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.triage import copies
from attnfuzz.kernels.cache_writes.rotation import cos_sin_table
from attnfuzz.kernels.planning.queries import packed_rows
from attnfuzz.reference.calls import Argument, CallCase, ExpectedWrite, View, content_of, named_views, viewed
from attnfuzz.reference.case import Case, PaddedSlot, Step
from attnfuzz.reference.rope import Pairing, Rope

_TOKENS = {"k_cache": "key", "v_cache": "value", "kv_cache": "key"}
"""The new tokens' argument, by the cache that they go to."""

_GATHERED = ("key_out", "value_out")
"""The results of a gather."""

_LISTS = ("batch_indices", "positions", "kv_indices", "kv_indptr")


def named_slots(arguments: Mapping[str, Any], size: int) -> torch.Tensor | None:
    """Return page * size + slot of each token, int64 [tokens], negative for skipped ones; None if no argument names it.

    A position beyond the pages of its request has a slot beyond any pool.
    """
    slots = arguments.get("slot_mapping")
    if isinstance(slots, torch.Tensor):
        return slots.long().flatten()
    lists = [arguments.get(name) for name in _LISTS]
    if not all(isinstance(each, torch.Tensor) for each in lists):
        return None
    rows, positions, pages, starts = (each.long() for each in lists if isinstance(each, torch.Tensor))
    if not bool(((rows < len(starts) - 1) & (positions >= 0)).all()):
        return torch.full_like(rows, torch.iinfo(torch.int64).max)
    at = starts[rows] + positions // size
    inside = (at < starts[rows + 1]) & (at < len(pages))
    padded = torch.cat((pages, pages.new_zeros(1)))
    slots = padded[at.where(inside, torch.tensor(len(pages)))] * size + positions % size
    slots = slots.where(inside, torch.iinfo(torch.int64).max)
    return slots.where(rows >= 0, -1)


def wrong_arguments(calls: CallCase, case: Case, step: Step) -> str | None:
    """Return the first mistake in the arguments of calls that rotate or write a step's new tokens.

    "" if there is none, None if the meaning of the arguments is unknown. Without the contents that are due, as after a
    death, only slots outside of the pool are mistakes.
    """
    known = False
    for index, call in enumerate(calls.calls):
        arguments = literal_arguments(calls, index)
        buffers = {view.buffer for _, view in named_views(call.arguments)}
        due = [each for each in calls.written if each.view.buffer in buffers and each.name in (*_TOKENS, *_GATHERED)]
        slots = _in_pool(calls, index, arguments, case) if not due else _as_due(calls, due, arguments, case, step)
        rotation = [] if case.rope is None else [_misrotated(case, case.rope, step, arguments)]
        scales = filter(None, [_misscaled(case, arguments)])
        for mistake in (*rotation, *scales, *slots):
            if mistake is None:
                return None
            if mistake:
                return mistake
            known = True
    return "" if known else None


def _misscaled(case: Case, arguments: Mapping[str, Any]) -> str:
    """Return a mistake in the factors of keys and values, "" if there is none."""
    factors = {"k_scale": case.scales.k, "v_scale": case.scales.v}
    wrong = (name for name, factor in factors.items() if arguments.get(name, factor) != factor)
    return next((f"its {name} is {arguments[name]} instead of {factors[name]}" for name in wrong), "")


def _misrotated(case: Case, rope: Rope, step: Step, arguments: Mapping[str, Any]) -> str:
    """Return a mistake in the arguments of a rotation, "" if there is none."""
    positions, table = (arguments.get(name) for name in ("rope_positions", "cos_sin_cache"))
    for first, request in zip(packed_rows(step), step.requests, strict=True):
        due = torch.arange(request.kv_len - request.q_len, request.kv_len) + rope.shift
        given = positions[first : first + request.q_len] if isinstance(positions, torch.Tensor) else due
        if not torch.equal(given.long(), due):
            return f"its rope_positions has {given.tolist()} for tokens at {due.tolist()}"
    dim = rope.dim(case.geometry)
    if isinstance(table, torch.Tensor) and not torch.equal(table, cos_sin_table(rope, len(table), dim)):
        return "its cos_sin_cache does not hold the cosines and sines of the case"
    numbers = {"rotary_dim": dim, "rope_theta": rope.theta, "is_neox": rope.pairing is Pairing.HALVES}
    wrong = (name for name, number in numbers.items() if arguments.get(name, number) != number)
    return next((f"its {name} is {arguments[name]} instead of {numbers[name]}" for name in wrong), "")


def _in_pool(calls: CallCase, index: int, arguments: Mapping[str, Any], case: Case) -> Iterator[str | None]:
    """Yield a mistake if a slot lies outside of a cache, or in its hole, "" otherwise."""
    for name in _TOKENS:
        cache = arguments.get(name)
        if not isinstance(cache, torch.Tensor) or cache.ndim != 4:
            continue
        axis = 2 if arguments.get("kv_layout", "HND") == "HND" else 1
        size = cache.shape[axis]
        slots = named_slots(arguments, size)
        if slots is None:
            yield None
        elif bool((outside := (slots < _least(case)) | (slots >= cache.shape[0] * size)).any()):
            row = int(outside.nonzero()[0])
            yield f"row {row} has slot {int(slots[row])}, outside of the {cache.shape[0]} pages of {name}"
        else:
            hollow = _in_hole(calls, calls.calls[index].arguments[name], slots, axis).nonzero()
            row = int(hollow[0]) if len(hollow) else -1
            yield f"row {row} has slot {int(slots[row])}, on a page of {name} that no request has" if row >= 0 else ""


def _in_hole(calls: CallCase, view: Argument, slots: torch.Tensor, axis: int) -> torch.Tensor:
    """Return which slots of a cache are among the elements without memory."""
    assert isinstance(view, View)
    hole = next(buffer.hole for buffer in calls.buffers if buffer.name == view.buffer)
    size = view.shape[axis]
    at = view.offset + slots // size * view.stride[0] + slots % size * view.stride[axis]
    first, end = hole or (0, 0)
    return (slots >= 0) & (at >= first) & (at < end)


def _least(case: Case) -> int:
    """Return the least slot that a call may name: -1, for tokens to skip, or 0."""
    return -1 if case.padded_slot is PaddedSlot.NOWHERE else 0


def _as_due(
    calls: CallCase, due: Sequence[ExpectedWrite], arguments: Mapping[str, Any], case: Case, step: Step
) -> Iterator[str | None]:
    """Yield the first mistake in the slots or the values of the tokens that each cache should get, "" without one."""
    first_rows = packed_rows(step)
    for each in due:
        size = each.view.shape[1]
        slots = named_slots(arguments, size)
        if slots is None:
            yield _miscopied(calls, each, arguments)
            continue
        page, offset, request, token = _content(calls, each.places)
        rows = torch.tensor(first_rows, dtype=torch.int64)[request] + token if len(request) else request
        free_page, free_offset = _content(calls, each.free)
        skipped = {PaddedSlot.NOWHERE: [-1], PaddedSlot.RESERVED: [0]}.get(case.padded_slot, [])
        free = torch.cat((free_page * size + free_offset, torch.tensor(skipped, dtype=torch.int64)))
        yield _misplaced(slots, rows, page * size + offset, free) or _mistaken(calls, each, arguments, rows)


def _miscopied(calls: CallCase, due: ExpectedWrite, arguments: Mapping[str, Any]) -> str | None:
    """Return the first mistake in the tokens that a copy names, "" without one, None for an unknown copy."""
    if due.name in (name for name in _TOKENS if name in arguments) and not len(_content(calls, due.places).T):
        # A pool that is read, and must stay as it is.
        return ""
    named = copies.named_tokens(due.name, arguments)
    if named is None:
        return None
    page, offset, *_ = _content(calls, due.places)
    high = None if due.high is None else _content(calls, due.high)
    return copies.mistake(named, copies.DueTokens(page * due.view.shape[1] + offset, _content(calls, due.low), high))


def _misplaced(slots: torch.Tensor, rows: torch.Tensor, due: torch.Tensor, free: torch.Tensor) -> str:
    """Return the first mistake in the slots of tokens: those of `rows` are due, others are skipped or in free ones."""
    if len(rows) and int(rows.max()) >= len(slots):
        return f"it has slots for {len(slots)} tokens, and the step has one in row {int(rows.max())}"
    wrong = (slots[rows] != due).nonzero()
    if len(wrong):
        at = int(wrong[0])
        return f"the token in row {int(rows[at])} has slot {int(slots[rows[at]])} instead of {int(due[at])}"
    others = torch.ones(len(slots), dtype=torch.bool)
    others[rows] = False
    stray = others & ~torch.isin(slots, free)
    if bool(stray.any()):
        at = int(stray.nonzero()[0])
        return f"row {at}, which belongs to no request, has slot {int(slots[at])}, where keys of a request may be"
    return ""


def _mistaken(calls: CallCase, due: ExpectedWrite, arguments: Mapping[str, Any], rows: torch.Tensor) -> str:
    """Return a mistake if tokens are to be stored as they are, and have other values than the cache should get."""
    name, low = _TOKENS[due.name], _content(calls, due.low)
    tokens = arguments.get(name)
    if due.high is not None or not isinstance(tokens, torch.Tensor) or tokens.dtype != low.dtype:
        return ""
    given = tokens[rows]
    same = given.shape == low.shape and torch.equal(given.contiguous().view(torch.uint8), low.view(torch.uint8))
    return "" if same else f"its {name} does not hold the values of the step's tokens"


def _content(calls: CallCase, view: View) -> torch.Tensor:
    content = content_of(next(buffer for buffer in calls.buffers if buffer.name == view.buffer))
    assert content is not None
    return viewed(content, view)
