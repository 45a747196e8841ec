"""Speed of detection: how soon the general search finds each reported bug, and how small the case becomes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import click
from measurement import backends_option, count_option, show, slices_of

from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, Suspect
from attnfuzz.harness.verdict.describe import describe
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case import Case

REVISIONS = ("trtllm_mha@21649-before", "trtllm_mha@24566", "trtllm_mla@21987-before", "trtllm_mla@22688-before")


@dataclass(frozen=True)
class Found:
    """The first finding of one campaign: cases and seconds until it was seen, seconds to shrink it, and its case."""

    seed: int
    examples: int
    seconds: float
    shrinking: float
    caught: Caught

    @property
    def _case(self) -> Case:
        assert isinstance(self.caught.case, Case)
        return self.caught.case

    @property
    def requests(self) -> int:
        """Real requests in the largest step."""
        return max((len(step.requests) for step in self._case.steps), default=0)

    @property
    def pages(self) -> int:
        """Pages of the longest request."""
        page_size = self._case.geometry.page_size
        return max((-(-kv_len // page_size) for kv_len in self._case.slot_lengths().values()), default=0)

    @property
    def steps(self) -> int:
        """Number of steps of the case."""
        return len(self._case.steps)

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.caught.observation.kind} after {self.examples} examples, {self.seconds:.1f} s; "
            f"shrunk in {self.shrinking:.1f} s"
        )
        return f"{head}\n{describe(self._case)}\n"


MEASURES: tuple[tuple[str, str, Callable[[Found], float], str], ...] = (
    ("examples", "<= 200", lambda found: found.examples, "{:.0f}"),
    ("seconds", "<= 10", lambda found: found.seconds, "{:.1f}"),
    ("to shrink", "seconds", lambda found: found.shrinking, "{:.1f}"),
    ("requests", "<= 2", lambda found: found.requests, "{:.0f}"),
    ("pages", "<= 1", lambda found: found.pages, "{:.0f}"),
    ("steps", "", lambda found: found.steps, "{:.0f}"),
)
"""Measures of the findings, each with its aim and format. Requests, pages and steps are those of the shrunk case."""


class _FirstFinding(Exception):
    """Carries the first finding out of the search and ends the search."""


class _Campaign(OneByOne):
    """A campaign's own slices, run one after the other until the first finding.

    Hypothesis begins every search with the same case, whatever the seed. That case is skipped: otherwise the seeds
    would not be independent, and a bug that the case shows would seem to be found by every seed.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._examples = 0
        self._slice_begins = False
        self._seen = (0, 0.0)

    def verdict(self, case: Case) -> Verdict:
        """Run and count a case."""
        self._examples += 1
        if self._slice_begins:
            self._slice_begins = False
            return Verdict()
        return self._runner.verdict(case)

    def renew(self) -> None:
        """Run the next case in a worker that has run nothing yet."""
        self._runner.renew()

    def hunt(self, revision: str, seed: int, limit: int) -> Found | None:
        """Search up to `limit` examples. Return None if all of them pass."""
        start = time.perf_counter()
        try:
            for task in slices_of(revision, examples=limit, seed=seed):
                self._slice_begins = True
                Hunt(task, self, self._receive).run(drawn_cases(revision))
        except _FirstFinding as found:
            examples, seen = self._seen
            return Found(seed, examples, seen - start, time.perf_counter() - seen, found.args[0])
        return None

    def _receive(self, message: AnyMessage) -> None:
        if isinstance(message, Suspect):
            self._seen = self._examples, time.perf_counter()
        if isinstance(message, Caught):
            raise _FirstFinding(message)


@click.command()
@backends_option(REVISIONS)
@count_option("--seeds", 20, "Campaigns per revision.")
@count_option("--examples", 2000, "Examples after which a campaign gives up.")
@click.option("--cases", is_flag=True, help="Print each finding and its shrunk case as well.")
def main(*, backends: tuple[str, ...], seeds: int, examples: int, cases: bool) -> None:
    """Search each revision as `attnfuzz fuzz` does, with several seeds, and shrink each seed's first finding.

    The workers are warm when the clock starts. Shrinking includes confirmation in a fresh worker.
    """
    found: dict[str, list[Found]] = {name: [] for name in backends}
    with Runner(backends) as runner:
        for seed in range(1, seeds + 1):
            for name in backends:
                finding = _Campaign(runner).hunt(name, seed, examples)
                if finding is not None:
                    found[name].append(finding)
                    if cases:
                        click.echo(finding)
    columns = ("median (worst)", "found\nall", *(f"{words}\n{aim}" for words, aim, _, _ in MEASURES))
    show("Detection", columns, [_row(name, found[name], seeds) for name in backends])


def _row(name: str, found: list[Found], seeds: int) -> list[str]:
    row = [name, f"{len(found)} of {seeds}"]
    for _, _, value, form in MEASURES:
        values = [value(each) for each in found]
        row.append(f"{form.format(median(values))} ({form.format(max(values))})" if values else "-")
    return row


if __name__ == "__main__":
    main()
