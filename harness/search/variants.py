"""Variants of a failing case that a search goes on with in its place.

- `steadier`: other values, which show the failure more often. Where keys are few and alike, a wrong mask may change the
  output with one seed in thirty. Without a feature, such a case then passes by chance, and all seems to be needed.
- `unaccepted`: without a feature, where the failure seems to be one that the ledger accepts. An entry names features
  that a failure needs, and a drawn case may have them by chance.
- `failing_alone`: the related run by itself. If it fails, the failure needs no first run.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import ablations, reseeded
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, ValueFamily
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.edits.cuts import tidy
from attnfuzz.reference.edits.relation import run_only_the_other


def steadier(pinned: Pinned[Case], allowed: Callable[[Case], bool]) -> Case:
    """Return the pinned case with a value family with which each of a few seeds fails alike.

    Its own family is kept if that does, or if none does.
    """
    case = pinned.first
    if pinned.passes == 0:
        return case
    others = (replace(case, values=values) for values in ValueFamily if values is not case.values)
    for each in others:
        if possible(each) and allowed(each) and all(map(pinned.fails, reseeded(each))):
            return each
    return case


def unaccepted(pinned: Pinned[Case], allowed: Callable[[Case], bool], accepts: Callable[[Case], bool]) -> Case | None:
    """Return a variant of the pinned case that fails alike and is not accepted, or None.

    It lacks one feature, or the steps of one mode.
    """
    tried = (each for each in _less(pinned.first, allowed) if not accepts(each))
    return next((each for each in tried if pinned.observation(each) is not None), None)


def _less(case: Case, allowed: Callable[[Case], bool]) -> Iterator[Case]:
    for ablation in ablations(case, allowed=allowed):
        yield from ablation.variants
    for mode in dict.fromkeys(step.mode for step in case.steps):
        kept = tidy(replace(case, steps=tuple(step for step in case.steps if step.mode is not mode)))
        if possible(kept) and allowed(kept):
            yield kept


RELATIVE = frozenset({Kind.METAMORPHIC_MISMATCH, Kind.REPLAY_DIVERGED, Kind.NONDETERMINISTIC})
"""Kinds of failures that compare two runs."""


def failing_alone(
    case: Case, verdict: Verdict, allowed: Callable[[Case], bool], run: Callable[[Case], Verdict]
) -> tuple[Case, Verdict] | None:
    """Return the related run as a separate case with its verdict, if it fails alone, else None.

    None if the worst failure belongs to the first run: it neither compares two runs nor occurred in the second.
    """
    if not verdict.failures or not (verdict.failures[0].kind in RELATIVE or verdict.failures[0].related):
        return None
    for other in run_only_the_other(case):
        if possible(other) and allowed(other) and (judged := run(other)).failures:
            return other, judged
    return None
