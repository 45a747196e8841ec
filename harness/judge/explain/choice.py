"""The choice among the alternatives, and its words."""

from collections.abc import Callable, Iterator
from textwrap import fill

import torch

from attnfuzz.harness.judge.explain.fit import CandidateFit, fit
from attnfuzz.harness.judge.explain.keys import AS_GOOD, changed_keys
from attnfuzz.harness.judge.explain.lse import lse_words
from attnfuzz.harness.judge.explain.masks import masks
from attnfuzz.harness.judge.explain.other_rows import other_keys, other_rows
from attnfuzz.harness.judge.explain.scales import extra_terms, logit_factor, output_factor, zero
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow

Hypothesis = Callable[[WrongRow], Iterator[Alternative]]

_AT_ANY_LENGTH: tuple[Hypothesis, ...] = (zero, output_factor, other_rows)
_ANSWERED_AGAIN: tuple[Hypothesis, ...] = (masks, extra_terms, logit_factor, other_keys)
"""Hypotheses of which each alternative is an attention over all keys."""

_LONG = 8192
"""Keys beyond which those are not tried."""

_MUCH_CLOSER = 10.0
"""An alternative that does not quite fit is worth saying if its error is smaller by this factor."""

_COLUMNS = 76


def explain(row: WrongRow) -> str:
    """What would make the row right, as lines of up to 76 columns; "" if nothing simple does.

    An alternative explains the row if the output lies within the judge's bound of it (and the LSE within its own), and
    chance could hardly have found one as close among as many. Of several that are as good, the first is said, with
    another and the number of the rest.
    """
    if not len(row.seen) or not bool(torch.isfinite(row.out).all()):
        return ""
    fits = _distinct(found for alternative in _alternatives(row) if (found := fit(row, alternative)) is not None)
    inside = [found for found in fits if found.within]
    full = [found for found in inside if found.lse_within is not False]
    if full or inside:
        words = _words(full or inside)
        if not full:
            words += "; " + (lse_words(row) or "the LSE does not agree")
    elif fits and (closest := max(fits, key=lambda found: found.closer)).closer >= _MUCH_CLOSER:
        words = f"closest: {_words([closest])}, which is {closest.closer:.3g} times closer"
    else:
        words = lse_words(row)
    return fill(words, _COLUMNS, break_long_words=False)


def _alternatives(row: WrongRow) -> Iterator[Alternative]:
    hypotheses = _AT_ANY_LENGTH if len(row.seen) > _LONG else _AT_ANY_LENGTH + _ANSWERED_AGAIN
    for hypothesis in (*hypotheses, changed_keys):
        yield from hypothesis(row)


def _distinct(fits: Iterator[CandidateFit]) -> list[CandidateFit]:
    """The fits whose alternatives differ; of equal ones the first."""
    distinct: list[CandidateFit] = []
    for found in fits:
        if not any(_same(found.alternative, known.alternative) for known in distinct):
            distinct.append(found)
    return distinct


def _same(one: Alternative, other: Alternative) -> bool:
    away = ((one.out - other.out).abs() / one.out_bound).amax().item()
    return away < 1e-11 and (one.lse == other.lse or abs(one.lse - other.lse) < 1e-12 * (1 + abs(one.lse)))


def _words(fits: list[CandidateFit]) -> str:
    """The first of the fits that are as good as the best, another one, and how many more there are."""
    best = max(found.gain for found in fits)
    first, *others = [found for found in fits if found.gain >= best - AS_GOOD]
    words = first.alternative.words
    if first.alternative.others:
        words += f" ({first.alternative.others} others fit as well)"
    if others:
        words += f"; or {others[0].alternative.words}"
    if len(others) > 1:
        words += f"; or {len(others) - 1} more"
    return words
