"""Shrinking of reported bugs: the final size, starting from steps and from calls, and the cost."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import click
from measurement import count_option, seed_option, show

from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.shrink import Shrunk, shrink
from attnfuzz.kernels.meaning import Role
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case

REPORTS = ("sglang-21649", "sglang-21987", "sglang-22688", "sglang-24566", "sglang-24856")


@dataclass(frozen=True)
class Size:
    """The size of a case: requests in the largest step or call, pages of the longest request, bytes of the file."""

    requests: int
    pages: int
    nbytes: int

    @classmethod
    def of(cls, case: AnyCase) -> "Size":
        """Return the size of a case of either kind."""
        nbytes = len(case_file.encode(case))
        if isinstance(case, Case):
            requests = max((len(step.requests) for step in case.steps), default=0)
            longest = max(case.slot_lengths().values(), default=0)
            return cls(requests, -(-longest // case.geometry.page_size), nbytes)
        assert isinstance(case, CallCase)
        meaning = Meaning(case)
        pages = max((len(span.pages) for spans in meaning.spans for span in spans), default=0)
        # Requests that have metadata: a kernel may assume a larger batch.
        requests = max((site.size("requests") for site in meaning.of_role(Role.KV_LENGTHS)), default=0)
        return cls(requests, pages, nbytes)

    def __str__(self) -> str:
        return f"{self.requests}, {self.pages}, {self.nbytes:,}"


class _FirstFailure(Exception):
    """Carries the first failing case out of the search."""


def first_failing(runner: Runner, backend: str, seed: int, examples: int) -> Case | None:
    """Return the first failing case that a search with this seed draws, as it was drawn, or None."""

    def visit(case: Case) -> None:
        if runner.verdict(case).failures:
            raise _FirstFailure(case)

    try:
        run_examples(drawn_cases(backend), visit, examples=examples, seed_of=seed)
    except _FirstFailure as found:
        case = found.args[0]
        assert isinstance(case, Case)
        return case
    return None


def starts(runner: Runner, backend: str, reported: Case, seed: int, examples: int) -> Iterator[tuple[str, AnyCase]]:
    """Yield cases to shrink: the reported one and the first random one, each as steps and as calls."""
    drawn = first_failing(runner, backend, seed, examples)
    for name, case in (("reported", reported), ("first random", drawn)):
        if case is None:
            continue
        yield f"{name}, steps", case
        calls = runner.trace(case)[1]
        if calls is not None:
            yield f"{name}, calls", calls


@click.command()
@click.option(
    "--report", "reports", multiple=True, type=click.Choice(REPORTS), default=REPORTS, help="Which reports to shrink."
)
@count_option("--rounds", 3, "Times that each case is shrunk; the median is shown.")
@count_option("--examples", 2000, "Examples after which the search for a first random case gives up.")
@count_option("--runs", 2000, "Cases that one shrinking may run.")
@seed_option
def main(*, reports: tuple[str, ...], rounds: int, examples: int, runs: int, seed: int) -> None:
    """Shrink each report's case, and the first random case that fails on the same revision, as steps and as calls."""
    bugs = {bug.name: bug for bug in load_bugs()}
    rows = []
    with Runner() as runner:
        for name in reports:
            reported = bugs[name].case_before
            assert isinstance(reported, Case)
            for kind, case in starts(runner, reported.backend, reported, seed, examples):
                rows.append([f"{name} {kind}", *_measured(runner, case, rounds, runs)])
    columns = ("requests, pages, bytes", "before", "after", "runs", "seconds")
    show("Shrinking", columns, rows)


def _measured(runner: Runner, case: AnyCase, rounds: int, runs: int) -> list[str]:
    seconds, shrunk = [], None
    for _ in range(rounds):
        start = time.perf_counter()
        shrunk = shrink(case, runner, budget=ShrinkBudget(runs=runs, seconds=3600.0))
        seconds.append(time.perf_counter() - start)
    # A race may not show again.
    if not isinstance(shrunk, Shrunk):
        return [str(Size.of(case)), "passes", "-", "-"]
    return [str(Size.of(case)), str(Size.of(shrunk.case)), str(shrunk.runs), f"{median(seconds):.1f}"]


if __name__ == "__main__":
    main()
