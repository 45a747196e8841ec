"""Rows of correct kernels, judged in several processes: how many fail, and the largest margins."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

from in_process import use_one_thread

from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.any_case import AnyCase

COLUMNS: Final = ("cases", "rows", "rows/s", "failures", "largest margins")
"""The columns of `JudgedRows.cells`."""

_SEEDS_APART: Final = 1 << 20
"""The difference of the seeds of two processes."""


@dataclass
class JudgedRows:
    """Numbers of cases, rows and failures, the seconds of one process, and the largest margin of each tier."""

    cases: int = 0
    rows: int = 0
    failures: int = 0
    seconds: float = 0.0
    margins: dict[str, float] = field(default_factory=dict)

    def add(self, other: "JudgedRows") -> None:
        """Add the numbers of another process."""
        self.cases += other.cases
        self.rows += other.rows
        self.failures += other.failures
        self.seconds += other.seconds
        for tier, margin in other.margins.items():
            self.margins[tier] = max(margin, self.margins.get(tier, 0.0))

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table with COLUMNS. Rows per second are those of one process."""
        margins = ", ".join(f"{tier} {margin:.2f}" for tier, margin in sorted(self.margins.items()))
        rate = self.rows / self.seconds if self.seconds else 0.0
        return f"{self.cases:,}", f"{self.rows:,}", f"{rate:,.0f}", str(self.failures), margins


Drawn = Callable[..., Iterator[AnyCase]]


def judged_rows(
    drawn: Drawn, groups: Sequence[tuple[Any, ...]], *, jobs: int, rows: int, seconds: float, seed: int
) -> list[JudgedRows]:
    """Judge at least `rows` rows of each group, for `seconds` at most, and print each failure.

    The cases of a group in one of `jobs` processes are `drawn(*group, seed)`, each with a seed of its own.
    """
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=use_one_thread) as pool:
        parts = [
            [
                pool.submit(_judged, drawn, (*group, seed + _SEEDS_APART * job), -(-rows // jobs), seconds)
                for job in range(jobs)
            ]
            for group in groups
        ]
        judged = []
        for group in parts:
            total = JudgedRows()
            for part in group:
                total.add(part.result())
            judged.append(total)
    return judged


def _judged(drawn: Drawn, arguments: tuple[Any, ...], rows: int, seconds: float) -> JudgedRows:
    """Judge the cases of one process."""
    begun = time.monotonic()
    total = JudgedRows()
    for case in drawn(*arguments):
        if total.rows >= rows or time.monotonic() - begun > seconds:
            break
        task = Task(case=case, backend=case.backend)
        verdict = Execution(task, lambda _: None, backend=backend_of(case.backend)).run()
        total.add(JudgedRows(1, verdict.rows, len(verdict.failures), 0.0, verdict.margins))
        for failure in verdict.failures:
            print(case, failure, flush=True)
    total.seconds = time.monotonic() - begun
    return total
