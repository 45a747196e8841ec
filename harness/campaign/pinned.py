"""A failure that is being shrunk: which smaller cases still fail in the same way, within a budget."""

import time
from collections.abc import Callable

from attnfuzz.harness.campaign.judge import Judge
from attnfuzz.harness.campaign.messages import ShrinkBudget
from attnfuzz.harness.failures import Observation, Verdict
from attnfuzz.harness.fingerprint import Fingerprint
from attnfuzz.reference.case import Case


class Pinned:
    """The failure with `fingerprint` of the case `first`, a fault being the same wherever it lands.

    Every verdict is remembered. Once the budget is spent, cases that were not run before count as passing and no
    others do, so that what shrinks sees answers that never change, and ends. `aside` is handed each verdict.
    """

    def __init__(
        self,
        fingerprint: Fingerprint,
        first: Case,
        verdict: Verdict,
        *,
        judge: Judge,
        budget: ShrinkBudget,
        aside: Callable[[Case, Verdict], None],
    ) -> None:
        self.fingerprint = fingerprint
        self.first = first
        self._verdicts = {first: verdict}
        self._judge = judge
        self._aside = aside
        self.grant(budget)

    def grant(self, budget: ShrinkBudget) -> None:
        """Start over with this budget; what was run before stays known."""
        self._runs_left = budget.runs
        self._deadline = time.monotonic() + budget.seconds

    def fails(self, case: Case) -> bool:
        """Whether `case` is known to fail like the first one."""
        return self.observation(case) is not None

    def observation(self, case: Case) -> Observation | None:
        """The failure of `case` that has the fingerprint, if it is known to fail like the first one."""
        if case not in self._verdicts and self._affordable():
            self._runs_left -= 1
            self._verdicts[case] = self._judge.verdict(case)
            self._aside(case, self._verdicts[case])
        verdict = self._verdicts.get(case, Verdict())
        wanted = self.fingerprint.anywhere
        matching = (each for each in verdict.failures if Fingerprint.of(case.backend, each).anywhere == wanted)
        return next(matching, None)

    def verdict(self, case: Case) -> Verdict:
        """The verdict on a case that was run."""
        return self._verdicts[case]

    def _affordable(self) -> bool:
        return self._runs_left > 0 and time.monotonic() < self._deadline
