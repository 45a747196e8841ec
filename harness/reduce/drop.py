"""Dropping positions of axes everywhere at once: in tensors, lengths, page ids, batch sizes, and the answer.

Positions are dropped wherever they occur, even if sizes disagree: malformed calls stay malformed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.harness.reduce.cut import cut
from attnfuzz.harness.reduce.meaning import Meaning, TensorSite
from attnfuzz.harness.reduce.numbers import flat_keys, renumbered
from attnfuzz.harness.reduce.placed_views import Place, tidy, views_of
from attnfuzz.harness.reduce.units import Positions, Uncuttable, marked
from attnfuzz.kernels.meaning import Role
from attnfuzz.kernels.meaning.call_pool import token_major
from attnfuzz.kernels.meaning.forms import window_of
from attnfuzz.reference.calls import CallCase, Expected, View, content_of, viewed
from attnfuzz.reference.dtypes import DType


@dataclass(frozen=True)
class Drop:
    """Positions to drop from axes by name, and from the keys of a (call, request).

    `scalars` are arguments to set in every call that has them.
    """

    axes: Mapping[str, Positions] = field(default_factory=dict)
    keys: Mapping[tuple[int, int], Positions] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)

    def of(self, axis: str, length: int) -> frozenset[int]:
        """Return the positions to drop from an axis of that length."""
        return frozenset(marked(self.axes.get(axis, range(0)), length).nonzero()[:, 0].tolist())


def dropped(meaning: Meaning, drop: Drop) -> CallCase:
    """Apply `drop` to the case. Raises Uncuttable."""
    case, cuts = _without_requests(meaning, drop)
    if case.answer is not None and (_changes_the_answer(meaning, drop) or _shows_lost_keys(meaning, drop)):
        raise Uncuttable("the answer would be to other attention than that of the calls")
    for site in meaning.sites:
        cuts[site.place] = _axes_to_cut(meaning, site, drop)
    calls = tuple(replace(call, arguments=call.arguments | _scalars(call.arguments, drop)) for call in case.calls)
    smaller = cut(renumbered(replace(case, calls=calls), meaning, drop.axes, drop.keys), cuts)
    if case.answer is not None and _shapes(smaller, meaning.strangers) != _shapes(case, meaning.strangers):
        raise Uncuttable("a call of unknown meaning would get other shapes, and the answer may be another")
    return tidy(smaller)


def without(meaning: Meaning, drops: Iterable[Drop]) -> Iterator[CallCase]:
    """Yield the case after each drop by itself, skipping those that can't be cut."""
    for drop in drops:
        try:
            yield dropped(meaning, drop)
        except Uncuttable:
            continue


def _shapes(case: CallCase, calls: frozenset[int]) -> list[tuple[int, ...]]:
    """Return the shapes of all tensors of these calls."""
    return [view.shape for place, view in views_of(case) if place[0] == "call" and place[1] in calls]


def _axes_to_cut(meaning: Meaning, site: TensorSite, drop: Drop) -> dict[int, Positions]:
    """Return the positions to drop from each axis of a tensor. Raises Uncuttable if none would be left."""
    cuts: dict[int, Positions] = {}
    for number, (axis, length) in enumerate(zip(site.parameter.axes, site.view.shape, strict=True)):
        if axis == "requests + 1":
            # A request's own entry is its start in masks, and its end among lengths, which are renumbered.
            own = 0 if site.parameter.role is Role.MASK_STARTS else 1
            cuts[number] = frozenset(request + own for request in drop.of("requests", length))
        elif axis == "kv tokens":
            cuts[number] = flat_keys(meaning, site.call, drop.keys)
        elif axis in drop.axes:
            cuts[number] = drop.axes[axis]
    real: dict[int, Positions] = {}
    for number, positions in cuts.items():
        gone, length = marked(positions, site.view.shape[number]), site.view.shape[number]
        if length and gone.all() and site.parameter.axes[number] != "kv tokens":
            # Null pointers make a kernel fail in another way. Having no keys is common.
            raise Uncuttable(f"nothing would be left of {site.parameter.name}")
        if gone.any():
            real[number] = positions
    return real


def _scalars(arguments: Mapping[str, Any], drop: Drop) -> dict[str, Any]:
    changed = {name: value for name, value in drop.scalars.items() if name in arguments}
    batch = arguments.get("batch_size")
    if isinstance(batch, int) and "requests" in drop.axes:
        changed["batch_size"] = batch - len(drop.of("requests", max(0, batch)))
    return changed


def _without_requests(meaning: Meaning, drop: Drop) -> tuple[CallCase, dict[Place, dict[int, Positions]]]:
    """Drop the answer's requests without remaining rows. Returns the cuts in the others."""
    cuts: dict[Place, dict[int, Positions]] = {}
    answer = meaning.case.answer
    if answer is None:
        return meaning.case, cuts
    rows = drop.of("tokens", answer.out.shape[0])
    keys = keys_of_answer(meaning, drop)
    kept: list[Expected] = []
    for index, expected in enumerate(answer.requests):
        first, length = expected.first_row, expected.query.shape[0]
        gone = frozenset(row - first for row in rows if first <= row < first + length)
        if length and len(gone) == length:
            continue
        for name, along in (("query", gone), ("key", keys.get(index)), ("value", keys.get(index))):
            heads = "q heads" if name == "query" else "kv heads"
            dim = "vo dim" if name == "value" else "qk dim"
            asked = {0: along, 1: drop.axes.get(heads), 2: drop.axes.get(dim)}
            cuts["request", len(kept), name] = {axis: positions for axis, positions in asked.items() if positions}
        kept.append(replace(expected, first_row=first - sum(row < first for row in rows)))
    return replace(meaning.case, answer=replace(answer, requests=tuple(kept))), cuts


def _changes_the_answer(meaning: Meaning, drop: Drop) -> bool:
    """Return whether too few packed keys of a request remain in a call for the answer to stay the same attention.

    Rows of a request without keys stay unwritten. If other calls have keys of it too, a causal call needs as many as
    there are queries, since its first queries would otherwise see only some keys of the others.
    """
    packed = {site.call for site in meaning.of_role(Role.KEY)}
    rows = drop.of("tokens", meaning.tokens)
    for (call, request), positions in drop.keys.items():
        kv_len = meaning.kv_len(call, request)
        if call not in packed or not kv_len or not len(positions) or request in drop.axes.get("requests", ()):
            continue
        alone = not any(meaning.kv_len(other, request) for other in range(len(meaning.spans)) if other != call)
        causal = not alone and bool(meaning.case.calls[call].arguments.get("is_causal"))
        if kv_len - len(positions) < (len(meaning.rows(request) - rows) if causal else 1):
            return True
    return False


def _shows_lost_keys(meaning: Meaning, drop: Drop) -> bool:
    """Return whether a window would move back to keys that had left it, and that their pages no longer hold."""
    truth = _Truth(meaning)
    rows = drop.of("tokens", meaning.tokens)
    for (call, request), positions in drop.keys.items():
        window, index = window_of(meaning.case.calls[call].arguments), truth.of(request)
        if window < 0 or index is None or not positions:
            continue
        own = meaning.rows(request)
        kv_len = meaning.kv_len(call, request)
        before = max(0, kv_len - len(own) - window)
        kept = [key for key in range(kv_len) if key not in positions]
        shown = [key for key in kept[max(0, len(kept) - len(own - rows) - window) :] if key < before]
        if shown and not truth.in_pool(call, request, index, shown):
            return True
    return False


def keys_of_answer(meaning: Meaning, drop: Drop) -> dict[int, frozenset[int]]:
    """Return the key and value rows dropped with keys of calls, for each request of the answer. Raises Uncuttable."""
    truth = _Truth(meaning)
    requests = drop.of("requests", meaning.batch)
    gone: dict[int, frozenset[int]] = {}
    for (call, request), positions in drop.keys.items():
        index = truth.of(request)
        if index is not None and request not in requests:
            first = truth.first_key(call, request, index)
            gone[index] = gone.get(index, frozenset()) | {first + position for position in positions}
    return gone


class _Truth:
    """The requests of an answer, matched to those of the calls: keys cut from a call are cut from the answer too."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        answer = meaning.case.answer
        self._requests = () if answer is None else answer.requests
        self._buffers = {buffer.name: buffer for buffer in meaning.case.buffers}
        self._keys = {site.call: site for site in meaning.of_role(Role.KEY)}

    def of(self, request: int) -> int | None:
        """Return the index of the answer's request with a request's rows, or None."""
        rows = self._meaning.rows(request)
        return next((index for index, expected in enumerate(self._requests) if expected.first_row in rows), None)

    def first_key(self, call: int, request: int, index: int) -> int:
        """Return the row of an answer's keys at which a request's keys in a call begin.

        If only one call has keys of a request, it has them from the first. Otherwise, each call has the equal ones.
        Raises Uncuttable if that is ambiguous.
        """
        calls = [each for each in range(len(self._meaning.spans)) if self._meaning.kv_len(each, request)]
        if len(calls) <= 1:
            return 0
        found = dict(self._found(request, calls, self._requests[index]))
        if call not in found:
            raise Uncuttable(f"the keys of request {request} in call {call} are not those of the answer")
        return found[call]

    def in_pool(self, call: int, request: int, index: int, keys: Sequence[int]) -> bool:
        """Return whether the pages of a call hold these keys of a request of the answer; True if it is not paged."""
        caches = [site for site in self._meaning.of_role(Role.CACHE) if site.call == call]
        if not caches:
            return True
        pool, pages = next(token_major(caches[0].parameter, caches[0].tensor)), self._meaning.spans[call][request].pages
        due = self._bits(self._requests[index].key)
        slots = pool.shape[1]
        return all(
            0 <= pages[key // slots] < len(pool)
            and torch.equal(_bits(pool[pages[key // slots], key % slots]), due[key])
            for key in keys
        )

    def _found(self, request: int, calls: list[int], expected: Expected) -> Iterator[tuple[int, int]]:
        key, value = self._bits(expected.key), self._bits(expected.value)
        free = torch.ones(len(key), dtype=torch.bool)
        values = {site.call: site for site in self._meaning.of_role(Role.VALUE)}
        for call in calls:
            if call not in self._keys or call not in values:
                continue
            first, length = self._meaning.spans[call][request].first_key, self._meaning.kv_len(call, request)
            own_key = _bits(self._keys[call].tensor[first : first + length])
            own_value = _bits(values[call].tensor[first : first + length])
            for row in range(len(key) - length + 1):
                rows = slice(row, row + length)
                if free[rows].all() and torch.equal(key[rows], own_key) and torch.equal(value[rows], own_value):
                    free[rows] = False
                    yield call, row
                    break

    def _bits(self, view: View) -> torch.Tensor:
        content = content_of(self._buffers[view.buffer])
        if content is None:
            raise Uncuttable(f"{view.buffer} has no content")
        return _bits(viewed(content, view))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(DType.of(tensor.dtype).bits)
