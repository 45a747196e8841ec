"""Variants of a failing case that a search goes on with in its place.

- `steadier`: other values, which show the failure more often. Where keys are few and alike, a wrong mask may change the
  output with one seed in thirty. Without a feature, such a case then passes by chance, and all seems to be needed.
- `unaccepted`: without a feature, where the failure seems to be one that the ledger accepts. An entry names features
  that a failure needs, and a drawn case may have them by chance.
- `failing_alone`: the related run by itself. If it fails, the failure needs no first run.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.ablation import ablations, reseeded
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import possible

C = TypeVar("C", bound=AnyCase)


def steadier(pinned: Pinned[C], allowed: Callable[[C], bool]) -> C:
    """Return the pinned case with a value family with which each of a few seeds fails alike.

    Its own family is kept if that does, or if none does.
    """
    case = pinned.first
    if pinned.passes == 0:
        return case
    for each in family_of(case).other_values(case):
        if possible(each) and allowed(each) and all(map(pinned.fails, reseeded(each))):
            return each
    return case


def unaccepted(pinned: Pinned[Any], allowed: Callable[[Any], bool], accepts: Callable[[Any], bool]) -> AnyCase | None:
    """Return a variant of the pinned case that fails alike and is not accepted, or None.

    It lacks one feature, or the steps of one mode.
    """
    tried = (each for each in _less(pinned.first, allowed) if not accepts(each))
    return next((each for each in tried if pinned.observation(each) is not None), None)


def _less(case: AnyCase, allowed: Callable[[Any], bool]) -> Iterator[AnyCase]:
    for ablation in ablations(case, allowed=allowed):
        yield from ablation.variants
    for kept in family_of(case).without_a_mode(case):
        if possible(kept) and allowed(kept):
            yield kept


RELATIVE = frozenset({Kind.METAMORPHIC_MISMATCH, Kind.REPLAY_DIVERGED, Kind.NONDETERMINISTIC})
"""Kinds of failures that compare two runs."""


def failing_alone(
    case: AnyCase, verdict: Verdict, allowed: Callable[[Any], bool], run: Callable[[Any], Verdict]
) -> tuple[AnyCase, Verdict] | None:
    """Return the related run as a separate case with its verdict, if it fails alone, else None.

    None if the worst failure belongs to the first run: it neither compares two runs nor occurred in the second.
    """
    if not verdict.failures or not (verdict.failures[0].kind in RELATIVE or verdict.failures[0].related):
        return None
    second = family_of(case).related(case)
    if second is None or not (possible(second.case) and allowed(second.case)):
        return None
    judged = run(second.case)
    return (second.case, judged) if judged.failures else None
