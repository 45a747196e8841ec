"""Pursuit of intermittent failures on simulated workers: how many are filed, and how many replays exit 1.

`benchmarks/intermittent.py` measures the same on real campaigns, which takes hours. Here each run of a case takes a
given time on a simulated clock, and hundreds of failures are pursued in a minute. A failure is either random, or it
shows at every N-th run of a process. In the latter case, the worker that met it had already run N - 1 cases.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import click
from measurement import count_option, seed_option, show

from attnfuzz.harness.sandbox.again import show_again
from attnfuzz.harness.sandbox.pursuit import Effort, Pursuit
from attnfuzz.harness.search.case_stages import RUNS_PER_SHRINKING_RUN
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.recurrence import MOST_SECONDS
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import Geometry

RANDOM_HISTORY = 50
"""Number of cases that a worker had run before a random failure."""

_NAN = Observation(kind=Kind.NOT_FINITE, place="out", message="NaN", step=0, mode="decode", kernel="kernel")


def _case(kv_len: int) -> Case:
    step = Step(
        mode=Mode.DECODE, requests=(Request(slot=0, q_len=1, kv_len=kv_len),), padded_tokens=1, tokens_per_request=1
    )
    geometry = Geometry(q_heads=1, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=16)
    return Case(backend="simulated", geometry=geometry, steps=(step,), seed=0)


SUSPECT, OTHER = _case(1), _case(2)


class Simulated:
    """Workers on which the suspect fails if `fails` is true of the number of runs. `now` is the time so far."""

    def __init__(self, fails: Callable[[int], bool], seconds: float) -> None:
        self.now = 0.0
        self._fails, self._seconds, self._ran = fails, seconds, 0

    def verdict(self, case: Case) -> Verdict:
        """Run a case."""
        self.now += self._seconds
        self._ran += 1
        wrong = self._fails(self._ran) and case.steps == SUSPECT.steps
        return Verdict(observations=(_NAN,) if wrong else ())

    def renew(self) -> None:
        """Start a new worker."""
        self._ran = 0

    @property
    def history(self) -> tuple[Case, ...]:
        """An empty history: a pursuit is given its history."""
        return ()

    def together(self, cases: Sequence[Case]) -> list[Verdict]:
        """Run cases in turn: load makes no difference here."""
        return [self.verdict(case) for case in cases]


class Outcome(NamedTuple):
    """The outcome of a pursuit: `filed` if the failure became a finding, `shown` if a replay of that exits 1."""

    filed: bool
    shown: bool = False


def pursued(fails: Callable[[int], bool], seconds: float, history: int) -> Outcome:
    """Pursue a failure that did not come back within a full budget, and replay the finding, if any."""
    workers, budget = Simulated(fails, seconds), ShrinkBudget()

    def clock() -> float:
        return workers.now

    effort = Effort(RUNS_PER_SHRINKING_RUN * budget.runs, budget.seconds)
    found = Pursuit(workers, SUSPECT, _NAN, (OTHER,) * history, effort, clock=clock).outcome()
    if not found.is_finding:
        return Outcome(filed=False)
    again = show_again(
        workers, found.case, found.observation, found.recurrence, found.history, seconds=MOST_SECONDS, clock=clock
    )
    return Outcome(filed=True, shown=again.failed > 0)


def _at_random(chance: random.Random, one_in: int, _: int) -> bool:
    return chance.random() < 1 / one_in


def _at_each(one_in: int, ran: int) -> bool:
    return ran % one_in == 0


@click.command()
@click.option(
    "--one-in", "rates", type=click.IntRange(min=1), multiple=True, default=(17, 100, 1000), show_default=True
)
@click.option(
    "--seconds",
    "costs",
    type=click.FloatRange(min=0.001),
    multiple=True,
    default=(0.01, 0.05),
    show_default=True,
    help="Seconds of a run.",
)
@count_option("--failures", 100, "Failures of each.")
@seed_option
def main(*, rates: tuple[int, ...], costs: tuple[float, ...], failures: int, seed: int) -> None:
    """Pursue simulated failures of several rates."""
    chance = random.Random(seed)
    rows = []
    for seconds in costs:
        for one_in in rates:
            at_random = partial(_at_random, chance, one_in)
            for name, fails, history in (
                (f"at random, 1 in {one_in:,}", at_random, RANDOM_HISTORY),
                (f"each {one_in:,}th", partial(_at_each, one_in), one_in - 1),
            ):
                rows.append(_row(name, seconds, [pursued(fails, seconds, history) for _ in range(failures)]))
    show("Pursuit of failures that come and go", ("shows", "seconds a run", "filed", "replays that exit 1"), rows)


def _row(name: str, seconds: float, outcomes: Sequence[Outcome]) -> list[str]:
    filed = [each for each in outcomes if each.filed]
    shown = sum(each.shown for each in filed)
    return [name, f"{seconds:g}", f"{len(filed)} of {len(outcomes)}", f"{shown} of {len(filed)}"]


if __name__ == "__main__":
    main()
