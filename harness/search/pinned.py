"""The failure that is being shrunk: decides which smaller cases fail in the same way, within a budget."""

import math
from collections.abc import Callable, Hashable
from copy import copy
from typing import Generic, Self, TypeVar

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce import identity
from attnfuzz.harness.reduce.ablation import FRESH_SEEDS, features_in
from attnfuzz.harness.sandbox.confirm import STATISTICAL
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.spending import Spending
from attnfuzz.harness.verdict.failures import DEATHS, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.features.row import Feature

C = TypeVar("C", bound=AnyCase)

_NEAR = 2.0
"""Margin below which other values may bring an error below its bound."""

_SEEDS_NEAR = 8
"""Number of value seeds for passing variants of such a case. If 1 of 3 seeds fails, all 9 runs pass in 3% of trials."""

_SEEDS_BY_VALUES = 6
"""Number of value seeds with which a wrong number is run again, to measure how often it occurs."""

_BY_CHANCE = 0.05
"""Probability that a variant in which a wrong number occurs equally often passes all of its runs."""

_MOST_RUNS = 48
"""Maximum number of runs of a variant for this. A rarer failure does not count as needing its feature."""


class Pinned(Spending, Generic[C]):
    """The failure with `fingerprint` of the case `first`. A fault is the same at any address, an exception at one line.

    `case` is the smallest case known to fail alike, and `clues` those that it needs as far as is known. The first case
    ran after those of `history`.
    Every verdict of `run` is cached. Once the budget is spent, unknown cases count as passing, so that shrinking gets
    consistent answers and ends. `aside` gets each verdict. `slowest` is the time of a run that fails, if it takes long.
    """

    def __init__(
        self,
        fingerprint: Fingerprint,
        first: C,
        verdict: Verdict,
        *,
        run: Callable[[C], Verdict],
        budget: ShrinkBudget,
        aside: Callable[[C, Verdict], None],
        slowest: float = 0.0,
        history: tuple[AnyCase, ...] = (),
    ) -> None:
        self.fingerprint = fingerprint
        self.first = self.case = first
        self.clues: frozenset[Feature] = frozenset()
        self.history = history
        self._verdicts: dict[Hashable, Verdict] = {identity(first): verdict}
        pinned = fingerprint.among(verdict.failures)
        self._exception = "" if pinned is None else pinned.exception
        self._run, self._aside = run, aside
        super().__init__(budget, slowest)

    def reduced_to(self, case: C, clues: frozenset[Feature]) -> Self:
        """Return the failure with a smaller case, which was run, and the clues that it needs."""
        reduced = copy(self)
        reduced.case, reduced.clues = case, clues
        return reduced

    @property
    def failure(self) -> Observation:
        """The failure of `case`."""
        observation = self.observation(self.case)
        assert observation is not None
        return observation

    @property
    def fresh_seeds(self) -> int:
        """Number of value seeds for rerunning a passing case that may pass by chance.

        More are used if the error is near its bound, or if the first case itself passes with some other seeds: a race,
        or a failure that depends on the contents of memory, is flaky.
        """
        return _SEEDS_NEAR if self._near(self.first) else min(FRESH_SEEDS << self.passes, _SEEDS_NEAR)

    @property
    def passes(self) -> int:
        """How many of a few other value seeds make the first case pass; of one, if a failing run costs a worker."""
        return self._passes(self.first, 1 if self.fingerprint.kind in DEATHS else FRESH_SEEDS)

    def runs_to_pass(self, case: C) -> Callable[[C], int]:
        """Return a function: the number of value seeds with which a variant has to pass for `case` to need its feature.

        `case` fails like the first one. Values decide which rows have a wrong number. The same share of a variant's
        rows is assumed to have one, so a variant with fewer rows needs more runs. 0 means too many.
        """
        if self.fingerprint.kind not in STATISTICAL:
            return lambda _: self.fresh_seeds + 1
        # With so few seeds, neither 0% nor 100% is certain.
        passing = (self._passes(case, _SEEDS_BY_VALUES) + 0.5) / (_SEEDS_BY_VALUES + 1)
        runs = math.log(_BY_CHANCE) / math.log(passing)
        least = (_SEEDS_NEAR if self._near(case) else FRESH_SEEDS) + 1

        def rows(one: C) -> int:
            return max(1, family_of(one).rows(one))

        def of(variant: C) -> int:
            enough = math.ceil(runs * max(1.0, rows(case) / rows(variant)))
            return 0 if enough > _MOST_RUNS else max(enough, least)

        return of

    def fails(self, case: C) -> bool:
        """Return whether `case` is known to fail like the first one."""
        return self.observation(case) is not None

    def fails_without(self, case: C) -> bool:
        """Return whether a variant, made without a feature, is known to fail for the same cause.

        If the first case has NaN in unused memory and this one has numbers, a kernel that uses them fails with a wrong
        number instead.
        """
        if self.fails(case):
            return True
        verdict = self.judged(case)
        return (
            verdict is not None
            and bool(_nan_in(self.first) - _nan_in(case))
            and self.fingerprint.wrong_among(verdict.failures) is not None
        )

    def may_fail(self, case: C) -> bool:
        """Return whether a variant `fails_without` a feature, or before its last step, which is then not run."""
        if self.fails_without(case):
            return True
        verdict = self.judged(case)
        if verdict is None:
            return False
        last = len(case.modes) - 1
        return any(not each.related and 0 <= each.step < last for each in verdict.failures)

    def observation(self, case: C) -> Observation | None:
        """Return the failure of `case` that has the fingerprint, if it is known to fail like the first one.

        An exception has to come from the same line.
        """
        verdict = self.judged(case)
        if verdict is None:
            return None
        return self.fingerprint.among(each for each in verdict.failures if each.exception == self._exception)

    def judged(self, case: C) -> Verdict | None:
        """Return the verdict on `case`, or None if it was not run before and the budget is spent."""
        key = identity(case)
        if key not in self._verdicts and not self.spent:
            with self.counted():
                self._verdicts[key] = self._run(case)
            self._aside(case, self._verdicts[key])
        return self._verdicts.get(key)

    def refused(self, case: C) -> bool:
        """Return whether the backend is known to answer Unsupported to `case`. Runs nothing."""
        verdict = self._verdicts.get(identity(case))
        return verdict is not None and verdict.unsupported is not None

    def verdict(self, case: C) -> Verdict:
        """Return the cached verdict on a case."""
        return self._verdicts[identity(case)]

    def _near(self, case: C) -> bool:
        """Return whether other values may bring the error of a case that fails like the first one below its bound."""
        observation = self.fingerprint.among(self._verdicts[identity(case)].failures)
        return observation is not None and observation.margin is not None and observation.margin < _NEAR

    def _passes(self, case: C, seeds: int) -> int:
        verdicts = [self.judged(each) for each in map(case.reseeded, range(1, seeds + 1))]
        return sum(each is not None and self.fingerprint.wrong_among(each.failures) is None for each in verdicts)


def _nan_in(case: AnyCase) -> frozenset[Feature]:
    """Return the kinds of memory of a case that must not matter, and hold NaN."""
    return frozenset(each for each in features_in(case) if each.memory)
