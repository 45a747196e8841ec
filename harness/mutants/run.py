"""A run of mutants, new or resumed: measure the cases on the unchanged code, then examine one mutant after another."""

import linecache
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from attnfuzz.harness.mutants.choose import possible, sampled
from attnfuzz.harness.mutants.examine import Stopped, WatchingRunner, examined, measured, reaching
from attnfuzz.harness.mutants.results import MutantOutcome, MutantResults, left
from attnfuzz.harness.mutation.changes import PlacedMutant
from attnfuzz.reference.any_case import AnyCase

T = TypeVar("T")

_CASES_PER_LINE = 50
"""Number of cases between two lines of progress."""


class Crew:
    """`jobs` threads with a runner each, which are closed at the end. A thread only waits for its runner's worker."""

    def __init__(self, jobs: int, runners: Callable[[], Any]) -> None:
        self._own = threading.local()
        self._made: list[Any] = []
        self._runners = runners
        # A nursery ends with the thread that started it: threads last as long as the pool.
        self._pool = ThreadPoolExecutor(jobs)
        self.stop = threading.Event()

    def each(self, tasks: Sequence[Callable[[WatchingRunner], T]]) -> Iterator[T]:
        """Run tasks, and yield their results as they end. Raises the first exception of a task."""
        waiting: set[Future[T]] = {self._pool.submit(self._run, task) for task in tasks}
        while waiting:
            # A wait without a limit is deaf to Ctrl-C.
            ended, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            for each in ended:
                yield each.result()

    def _run(self, task: Callable[[WatchingRunner], T]) -> T:
        if self.stop.is_set():
            raise Stopped
        # A pool hides the exception of an initializer: a runner is made by the first task.
        if not hasattr(self._own, "runner"):
            self._own.runner = self._runners()
            self._made.append(self._own.runner)
        return task(self._own.runner)

    def close(self) -> None:
        """Stop all tasks, and close the runners."""
        self.stop.set()
        self._pool.shutdown(cancel_futures=True)
        for runner in self._made:
            runner.close()


@contextmanager
def crew(jobs: int, runners: Callable[[], Any]) -> Iterator[Crew]:
    """Return a crew that is closed after the block."""
    made = Crew(jobs, runners)
    try:
        yield made
    finally:
        made.close()


def run(
    results: MutantResults,
    drawn: Callable[[], Sequence[AnyCase]],
    team: Crew,
    *,
    lines: Mapping[str, frozenset[int]] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[MutantResults]:
    """Yield the results after the cases were measured, and after each mutant. `drawn` draws the cases of a new run.

    Only mutants of `lines` by file are run, if they are given. `tell` gets a line of progress.
    """
    asked = results.asked
    if not results.cases:
        cases = drawn()
        tell(f"Running {len(cases):,} cases on the unchanged code.")
        tasks = [partial(measured, number, case, asked.places) for number, case in enumerate(cases, start=1)]
        kept = []
        for done, each in enumerate(team.each([partial(_called, task) for task in tasks]), start=1):
            kept += [] if each is None else [each]
            if not done % _CASES_PER_LINE:
                tell(f"{done:,} of {len(cases):,}; {len(kept):,} pass.")
        results = replace(results, cases=tuple(sorted(kept, key=lambda each: each.number)))
        yield results
    found = possible(results.cases, lines)
    results = replace(results, possible=len(found))
    chosen = sampled(found, asked.sample, asked.seed)
    unknown = set(left(results, [each.mutant for each in chosen]))
    tell(f"{len(found):,} mutants are on executed lines; {len(unknown):,} to run.")
    todo = [partial(_examine, results, each, team.stop) for each in chosen if each.mutant in unknown]
    for outcome in team.each(todo):
        results = replace(results, outcomes=(*results.outcomes, outcome))
        tell(f"{len(results.outcomes):,} of {len(chosen):,}: {in_words(outcome)}")
        yield results


def _called(task: Callable[..., T], runner: WatchingRunner) -> T:
    return task(runner=runner)


def _examine(
    results: MutantResults, found: PlacedMutant, stop: threading.Event, runner: WatchingRunner
) -> MutantOutcome:
    mutant = found.mutant
    return examined(
        mutant,
        linecache.getline(mutant.file, mutant.line).strip(),
        reaching(found, results.cases),
        runner,
        seconds=results.asked.seconds,
        stop=stop,
    )


def in_words(outcome: MutantOutcome) -> str:
    """Return the fate of a mutant in a line."""
    mutant = outcome.mutant
    by = f" by {outcome.kind}{f' at {outcome.place}' if outcome.place else ''}, case {outcome.number}"
    how = by if outcome.kind else f" {outcome.ran} of {outcome.reached} cases, {outcome.changed} other plans"
    return f"{mutant.name} {outcome.fate}{how}, {outcome.seconds:.1f} s: {mutant.before} -> {mutant.after or 'nothing'}"
