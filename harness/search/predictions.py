"""The predictions of known causes about a failing case."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.ablation import ablations, features_in, reseeded, unusual_in
from attnfuzz.harness.reduce.plainest import plainest
from attnfuzz.harness.search.attribute import attribute
from attnfuzz.harness.search.known import KnownCause, visible_with
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.refused import judged_without
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.features.row import Feature

SHARE = 0.4
"""Share of a failure's shrinking budget for testing causes."""

ATTRIBUTION = ShrinkBudget(runs=150, seconds=3.0)
"""Budget for testing causes on a failure that there is no time to shrink, or that was shrunk."""

SEEDS = 2
"""Number of value seeds tried on a case that is predicted to fail."""

Allowed = Callable[[Any], bool]


def attribute_case(
    pinned: Pinned[Any],
    causes: Iterable[KnownCause],
    allowed: Allowed,
    *,
    needed: Collection[Feature] = frozenset(),
    beside: Iterable[KnownCause] = (),
    share: float = SHARE,
) -> tuple[KnownCause | None, AnyCase]:
    """Find the cause that explains a pinned failure, and the case to go on with, within a `share` of its budget.

    The failure is known to need the features `needed`. A variant may fail as the known causes `beside` do. An exception
    from the backend's own code has the cause that is known to raise it.
    """
    alike = (each for each in causes if type(each.case) is type(pinned.first))
    causes = sorted(alike, key=lambda cause: pinned.fingerprint.kernel not in cause.kernels)
    observation = pinned.observation(pinned.first)
    exception = "" if observation is None else observation.exception
    if (raising := next((each for each in causes if exception in each.exceptions), None)) is not None:
        return raising, pinned.first
    predictions = _CasePredictions(pinned, allowed, (*causes, *beside), frozenset(needed), share)
    return attribute(predictions, pinned.first, causes)


class _CasePredictions:
    """Runs variants of a pinned case, and known causes' cases in its place."""

    def __init__(
        self,
        pinned: Pinned[Any],
        allowed: Allowed,
        known: Collection[KnownCause],
        needed: frozenset[Feature],
        share: float,
    ) -> None:
        self._pinned, self._allowed, self._known, self._share = pinned, allowed, known, share
        self._visible = visible_with(pinned.fingerprint)
        self._clues = _clues(needed) - self._visible

    def over(self) -> bool:
        return self._pinned.left <= 1 - self._share

    def marks(self, cause: KnownCause, tried: AnyCase) -> frozenset[Feature] | None:
        """Return the marks; None for a cause of other kernels or kinds, and if the failure needs further clues.

        A cause without clues fails nearly everywhere: it is known by its kernel and kind.
        """
        marks, ours = cause.marks_in(tried), self._pinned.fingerprint
        if marks is None or not self._clues <= marks:
            return None
        if _clues(marks):
            near = any(each.backend == ours.backend or each.kernel == ours.kernel for each in cause.symptoms)
            return marks if near and any(each.family == ours.family for each in cause.symptoms) else None
        return marks if any((each.kernel, each.kind) == (ours.kernel, ours.kind) for each in cause.symptoms) else None

    def without(self, tried: AnyCase, marks: Collection[Feature]) -> Iterator[AnyCase]:
        for ablation in ablations(tried, allowed=self._allowed, among=marks):
            for variant in judged_without(self._pinned, ablation, tried, self._allowed):
                yield from reseeded(variant, self._pinned.fresh_seeds + 1)

    def fails(self, variant: AnyCase) -> bool:
        return self._pinned.observation(variant) is not None

    def passes(self, cause: KnownCause, variant: AnyCase, marks: Collection[Feature]) -> bool:
        """Return whether a variant passes, or fails only as other causes do.

        It may fail as this cause does if only features are missing that make the failure visible.
        """
        verdict = self._pinned.judged(variant)
        if verdict is None or self._pinned.fingerprint.wrong_among(verdict.failures) is not None:
            return False
        lacking = frozenset(marks) - features_in(variant)
        if not verdict.failures or not any(each.clue for each in lacking):
            return True
        worst = Fingerprint.of(variant.backend, verdict.failures[0])
        others = (each for each in self._known if each.name != cause.name or self._visible & lacking)
        return any(each.shows_as(worst) for each in others)

    def alone(self, cause: KnownCause, tried: AnyCase, marks: Collection[Feature]) -> AnyCase | None:
        """Return the case without all clues but the marks, if it fails, and the cause predicts that.

        The cause's case fails like it in its place, or it fails in the place of the cause's case as that does. A cause
        without clues fails nearly everywhere, so both have to hold.
        """
        kept = self._visible | frozenset(marks)
        plain = plainest(tried, self.fails, allowed=self._allowed, among=unusual_in(tried) - kept)
        for feature in sorted(unusual_in(plain) - kept):
            for _, variants in ablations(plain, allowed=self._allowed, among={feature}):
                failing = next(filter(self.fails, variants), None)
                if failing is None and not all(map(self._pinned.refused, variants)):
                    return None
                plain = failing or plain
        ours, its = self._pinned.fingerprint, cause.fingerprint
        family = family_of(tried)
        places = ((family.moved(cause.case, tried, ours), ours), (family.moved(plain, cause.case, its), its))
        enough = any if _clues(marks) else all
        if not enough(self._some_fails(cases, fingerprint) for cases, fingerprint in places):
            return None
        return plain

    def _some_fails(self, cases: Iterator[AnyCase], fingerprint: Fingerprint) -> bool:
        """Return whether one of the possible cases fails like this with some value seed."""
        for case in filter(lambda each: possible(each) and self._allowed(each), cases):
            for again in reseeded(case, max(SEEDS, self._pinned.fresh_seeds)):
                verdict = self._pinned.judged(again)
                if verdict is not None and fingerprint.among(verdict.failures) is not None:
                    return True
        return False


def _clues(marks: Collection[Feature]) -> frozenset[Feature]:
    """Return the clues among marks, except NaN in memory, which almost every case has."""
    return frozenset(each for each in marks if each.clue and not each.memory)
