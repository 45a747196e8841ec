"""Finding the features that a failure needs, within the budget for shrinking it."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from attnfuzz.harness.reduce import SameCause
from attnfuzz.harness.reduce.ablation import FEATURES, clues_in, features_in, needed, unusual_in
from attnfuzz.harness.reduce.plainest import plainest, removable_together
from attnfuzz.harness.sandbox.confirm import STATISTICAL, alike
from attnfuzz.harness.sandbox.pursuit import Pursued
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Verdict
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Pace
from attnfuzz.reference.features.row import Feature

C = TypeVar("C", bound=AnyCase)

PROMPT_RUNS = 60
"""Maximum number of runs on a prompt device before a flaky failure counts as needing a late one."""


def hangs_late(pinned: Pinned[Any]) -> bool:
    """Return whether a case hangs only on a late device: a kernel may loop over a plan that the host overwrote."""
    late = {FEATURES["late device"]}
    hangs = pinned.fingerprint.kind is Kind.HANG
    return hangs and bool(needed(pinned.first, pinned.fails, among=late, refused=pinned.refused)) and not pinned.spent


def needs_late(pursued: Pursued, run: Callable[[Any], Verdict]) -> tuple[str, ...]:
    """Return the feature "late device" if a flaky failure does not occur on a prompt device."""
    if not pursued.case.late or pursued.recurrence.seen_once:
        return ()
    prompt = pursued.case.having(pace=Pace.PROMPT)
    for _ in range(min(pursued.recurrence.runs_to_show, PROMPT_RUNS)):
        if any(alike(seen, pursued.observation) for seen in run(prompt).observations):
            return ()
    return ("late device",)


def cause_of(
    case: C,
    pinned: Pinned[C],
    allowed: Callable[[C], bool],
    *,
    marks: frozenset[Feature] | None = None,
) -> SameCause[C]:
    """Return the features that the failure of `case` needs, for cutting the case down without losing them.

    They are found by ablation, unless the `marks` of a known cause are given. If each failing run costs a worker, the
    case is made plain before, because most variants that lack one feature fail.
    """
    by_chance = pinned.fingerprint.kind in STATISTICAL
    if marks:
        return SameCause(case, marks, pinned.fails, allowed, by_chance, fails_without=pinned.fails_without)
    if pinned.fingerprint.kind in DEATHS:
        case = plainest(case, pinned.fails, allowed=allowed, among=unusual_in(case))
    clues = clues_in(case) - _spare(pinned, case, allowed, clues_in(case))
    runs = pinned.runs_to_pass(case)
    features = needed(case, pinned.may_fail, allowed=allowed, among=clues, runs=runs, refused=pinned.refused)
    costly = pinned.fingerprint.kind in DEATHS
    return SameCause(case, features, pinned.fails, allowed, by_chance, costly, pinned.fails_without)


def _spare(pinned: Pinned[C], case: C, allowed: Callable[[C], bool], among: Collection[Feature]) -> frozenset[Feature]:
    """Return features that the failure of `case` is known not to need after few runs, if it kills the worker."""
    if pinned.fingerprint.kind not in DEATHS:
        return frozenset()
    return removable_together(case, pinned.may_fail, allowed=allowed, among=among)


def needs_of(
    pinned: Pinned[Any], case: AnyCase, allowed: Callable[[Any], bool], *, clues: Collection[Feature] = ()
) -> tuple[str, ...]:
    """Return the names of the features that the failure of `case` needs, as far as the budget allows.

    `clues` are known to be needed, because shrinking kept them.
    """
    runs = pinned.runs_to_pass(case)

    def shown(feature: Feature) -> bool:
        # A check that was cut short shows nothing.
        found = needed(case, pinned.may_fail, allowed=allowed, among={feature}, runs=runs, refused=pinned.refused)
        return bool(found) and not pinned.spent

    others = features_in(case).difference(clues)
    tried = (others - _spare(pinned, case, allowed, others)).union(clues)
    clues_first = sorted(features_in(case) & tried, key=lambda each: (not each.clue, each.name))
    return tuple(feature.name for feature in clues_first if feature in clues or shown(feature))
