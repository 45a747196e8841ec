"""Claims about keys that are missing, counted twice, or read instead of others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log

import torch

from attnfuzz.harness.judge.explain.claim import POSITIONS, Claim
from attnfuzz.harness.judge.explain.key_terms import KeyTerms, key_terms
from attnfuzz.harness.judge.explain.support import smallest_error
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow, without
from attnfuzz.reference.mistake import Mistake

AS_GOOD = 3.0
"""Difference of gain within which candidates fit as well as the best: odds of 20 to 1."""

_BLOCKS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Block sizes of pages and of kernels' tiles."""

_LEADS = 8
"""Number of keys or blocks that are tried as replacements of all others, or as replaced by them."""

_RUNS = 512
"""Number of places at which a run may begin or end, evenly spaced."""

_ANSWERED = 4
"""Number of most promising changes that are computed exactly."""

_DOMINANT = 0.999
"""Weight of a key above which the rest is a difference of two nearly equal numbers."""

MOST_ELEMENTS = 1 << 23
"""Value elements of a row above which no key is singled out: 65,536 keys of 128 elements, 64 MiB in fp64."""


@dataclass(frozen=True)
class _Change:
    """Keys `gone` and keys `read` in addition to those that the row sees: the best of `tried` changes.

    `left` is the remaining error, and `others` the number of changes that fit as well.
    """

    mistake: Mistake
    words: str
    gone: range
    read: range
    left: float
    tried: int
    others: int = 0

    @property
    def claim_words(self) -> str:
        """The words and the number of others that fit as well."""
        return self.words + (f" ({self.others} others fit as well)" if self.others else "")


_NONE = range(0)


def changed_keys(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that a key, an aligned block or a run of keys is missing, counted twice, or replaced by another."""
    if not len(row.seen) or len(row.seen) * row.out.shape[0] > MOST_ELEMENTS:
        return
    each = key_terms(row)
    blocks, grains = [each], each
    for size in _BLOCKS:
        if size < len(row.seen):
            blocks.append(blocks[-1].coarser(size // blocks[-1].size))
    while len(row.seen) > grains.size * _RUNS:
        grains = grains.coarser(2)
    changes = [*_one(row, each), *_ends(row, each)]
    for level in blocks[1:]:
        changes += _one(row, level)
    changes += _runs(grains)
    changes = list({(change.gone, change.read): change for change in reversed(changes)}.values())[::-1]
    gains = [_gain(row, change) for change in changes]
    least = max(0.0, max(gains) - 2 * AS_GOOD)
    promising = sorted(range(len(changes)), key=lambda index: -gains[index])[:_ANSWERED]
    chosen = [changes[index] for index in sorted(promising) if gains[index] > least]
    for level in blocks:
        chosen += _dominant(level)
    for change in chosen:
        if change.gone == row.seen and not change.read:
            # If no key is left, this is the claim `no_keys`.
            continue
        answer = _changed(row.request, change.gone, change.read)
        yield Claim(change.mistake, change.claim_words, answer, POSITIONS, change.tried)
    for level in blocks:
        if len(level.mass) > 1:
            yield _value_missing(row, level)


def _changed(request: int, gone: range, read: range) -> Callable[[WrongRow], Alternative | None]:
    """Drop the keys `gone`. Each key of `read` replaces the key of `gone` at its place, or is counted again."""

    def answer(row: WrongRow) -> Alternative | None:
        if row.request != request or max(gone.stop, read.stop) > row.kv_len:
            return None
        seen = row.seen
        cut = _common(gone, seen)
        again = read[cut.start - gone.start : cut.stop - gone.start] if gone else _common(read, seen)
        return row.reading(*(without(seen, cut) if cut else (seen,)), again)

    return answer


def _common(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(min(one.stop, other.stop), start))


def _one(row: WrongRow, blocks: KeyTerms) -> Iterator[_Change]:
    """Yield the best changes of one block: missing, counted twice, or replaced by another."""
    yield from _missing(row, blocks)
    yield from _twice(row, blocks)
    yield from _replaced(blocks)


def _gain(row: WrongRow, change: _Change) -> float:
    """Estimate the gain of `support.vote`, without the LSE."""
    least = smallest_error(row, row.truth.out, row.truth.out_bound)
    before = (row.error / row.truth.out_bound).square().mean().sqrt().item()
    return row.out.shape[0] * log(max(before, least) / max(change.left, least)) - log(change.tried)


def _missing(row: WrongRow, blocks: KeyTerms) -> Iterator[_Change]:
    left = blocks.left(-1)
    best, others = _best(row, left)
    cut = blocks.keys(best)
    words = f"as if {_named(cut, blocks.size)} were missing"
    yield _Change(Mistake.KEYS_MISSING, words, cut, _NONE, left[best].item(), len(left), others)


def _dominant(blocks: KeyTerms) -> Iterator[_Change]:
    """Yield the block with nearly all the weight as missing: the remainder can't be computed from the weights."""
    heaviest = int(blocks.mass.argmax())
    if blocks.mass[heaviest] > _DOMINANT:
        cut = blocks.keys(heaviest)
        words = f"as if {_named(cut, blocks.size)} were missing"
        yield _Change(Mistake.KEYS_MISSING, words, cut, _NONE, 0.0, len(blocks.mass))


def _twice(row: WrongRow, blocks: KeyTerms) -> Iterator[_Change]:
    left = blocks.left(1)
    best, others = _best(row, left)
    again = blocks.keys(best)
    words = f"as if {_named(again, blocks.size)} were counted twice"
    yield _Change(Mistake.KEYS_TWICE, words, _NONE, again, left[best].item(), len(left), others)


def _replaced(blocks: KeyTerms) -> Iterator[_Change]:
    """Yield one block read in place of another: the best pair with at least one block among the leads."""
    count = len(blocks.mass)
    pairs = []
    for times in (-1, 1):
        leads = blocks.left(times).topk(min(_LEADS, count), largest=False).indices
        left = blocks.left_swapped(leads, times)
        lead, other = divmod(int(left.argmin()), count)
        pairs.append((left[lead, other].item(), (int(leads[lead]), other)[::times]))
    least, (read, gone) = min(pairs)
    cut, again = blocks.keys(gone), blocks.keys(read)
    if gone != read and len(cut) == len(again):
        words = f"as if {_named(again)} were read instead of {_named(cut)}"
        yield _Change(Mistake.KEYS_REPLACED, words, cut, again, least, count * count)


def _ends(row: WrongRow, each: KeyTerms) -> Iterator[_Change]:
    """Yield the first n or the last n keys as missing."""
    count = len(each.mass)
    if count < 3:
        return
    first, last = each.left_without_ends()
    for left, end in ((last, "last"), (first, "first")):
        best, others = _best(row, left[:-1])
        cut = row.seen[best + 1 :] if end == "last" else row.seen[: best + 1]
        if len(cut) > 1:
            words = f"as if the {end} {len(cut):,} keys were missing"
            yield _Change(Mistake.KEYS_MISSING, words, cut, _NONE, left[best].item(), count, others)


def _runs(grains: KeyTerms) -> Iterator[_Change]:
    """Yield runs of keys, with edges at multiples of the grain, as missing or counted twice."""
    count = len(grains.mass)
    before = torch.cat((torch.zeros_like(grains.terms[:1]), grains.terms.cumsum(0)))
    mass = torch.cat((grains.mass.new_zeros(1), grains.mass.cumsum(0)))
    later = torch.ones(count + 1, count + 1, dtype=torch.bool, device=mass.device).triu(1)
    for times, fault in ((-1, "missing"), (1, "counted twice")):
        # left[a, b] is the remaining error for the run from edge a to edge b.
        left = torch.cdist(before, before - times * grains.target) / len(grains.target) ** 0.5
        left /= (1 + times * (mass - mass.unsqueeze(-1))).clamp(min=1e-15)
        left[~later] = torch.inf
        begin, end = divmod(int(left.argmin()), count + 1)
        run = range(grains.keys(begin).start, grains.keys(end - 1).stop)
        if 1 < len(run) < len(grains.seen):
            gone, read = (run, _NONE) if times < 0 else (_NONE, run)
            words = f"as if {_named(run)} were {fault}"
            mistake = Mistake.KEYS_MISSING if times < 0 else Mistake.KEYS_TWICE
            yield _Change(mistake, words, gone, read, left[begin, end].item(), count * count)


def _value_missing(row: WrongRow, blocks: KeyTerms) -> Claim:
    """Return the claim that one block is counted in the denominator, but not in the sum of values."""
    best, others = _best(row, blocks.left_without_values())
    cut, request = blocks.keys(best), row.request

    def answer(each: WrongRow) -> Alternative | None:
        if each.request != request:
            return None
        weights, values = each.weights_and_values
        common = _common(cut, each.seen)
        part = slice(common.start - each.seen.start, common.stop - each.seen.start)
        return each.with_out(each.truth.out - weights[part] @ values[part])

    words = f"as if the values of {_named(cut, blocks.size)} were missing, but not the weights"
    words += f" ({others} others fit as well)" if others else ""
    return Claim(Mistake.VALUES_MISSING, words, answer, POSITIONS, len(blocks.mass))


def _best(row: WrongRow, left: torch.Tensor) -> tuple[int, int]:
    """Return the candidate with the smallest error, and the number of others that fit as well."""
    best = int(left.argmin())
    least = max(left[best].item(), smallest_error(row, row.truth.out, row.truth.out_bound))
    return best, int((left <= least * exp(AS_GOOD / row.out.shape[0])).sum()) - 1


def _named(keys: range, size: int = 1) -> str:
    if len(keys) == 1:
        return f"key {keys.start}"
    block = f" (an aligned block of {size})" if size > 1 else ""
    return f"keys {keys.start} to {keys.stop - 1}{block}"
