"""Releases of engines: how fast they start and run, how many cases fail, and how soon reported bugs are found.

Backends have the names that `attnfuzz fuzz` takes, such as vllm==0.33.0:flashinfer. The time to fetch a release is not
included.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import click
from measurement import count_option, quantile, sample, seconds_of, seed_option, show, slices_of
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.shrinking import NOTHING
from attnfuzz.harness.reduce.ablation import FEATURES, needed
from attnfuzz.harness.releases.replaying import CANNOT_BE_JUDGED, reason_of
from attnfuzz.harness.releases.wanted import fingerprint_anywhere
from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, ShrinkBudget, Suspect
from attnfuzz.harness.search.shrink import Shrunk, shrink
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case

NEEDS = ("query scale", "kept queries", "K scale", "V scale", "fp8 KV", "soft cap", "sinks", "window", "several chunks")
"""The features to look at: those that reports name."""

backends_argument = click.argument("backends", nargs=-1, required=True, metavar="BACKEND...")


@click.group()
def main() -> None:
    """Measure releases of engines."""


@main.command()
@backends_argument
@count_option("--cases", 10, "Cases per backend.")
@seed_option
def failing(*, backends: tuple[str, ...], cases: int, seed: int) -> None:
    """Judge drawn cases on each backend; print the features that failures need.

    This only judges cases. To confirm and minimize failures, use `attnfuzz sweep`, which runs all backends of a
    release.
    """
    rows = []
    with Runner() as runner:
        for backend in backends:
            rows.append((backend, _judged(runner, backend, cases, seed)))
            click.echo(": ".join(rows[-1]), err=True)
    show("Failing cases", ("backend", "failing"), rows)


@main.command()
@backends_argument
@count_option("--cases", 100, "Cases per backend.")
@seed_option
def speed(*, backends: tuple[str, ...], cases: int, seed: int) -> None:
    """Time the start of each backend's release, and judged cases on it."""
    rows = []
    for backend in backends:
        rows.append(_timed(backend, cases, seed))
        click.echo(", ".join(rows[-1]), err=True)
    show("Speed", ("backend", "start, s", "cases/s", "steps/s", "median, ms", "worst, ms", "fail"), rows)


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="REPORT...")
@count_option("--seeds", 20, "Searches for each report, with seeds from --seed on.")
@seed_option
@count_option("--examples", 500, "Examples after which a search gives up.")
@click.option("--shrink", type=float, default=60.0, show_default=True, help="Seconds; 0 to leave it out.")
@click.option(
    "--kept",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the searches so far: those are in the table and not repeated, so that a run may end early.",
)
def reports(*, names: tuple[str, ...], seeds: int, seed: int, examples: int, shrink: float, kept: Path | None) -> None:
    """Search for reported bugs, such as vllm-48003, each in a release that has it.

    A search ends with the first failure that the fixed release does not have.
    """
    known = {bug.name: bug for bug in load_bugs() if bug.release}
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"no report {', '.join(unknown)} is in a release")
    budget = ShrinkBudget(runs=2000, seconds=shrink)
    show(
        "Reports",
        ("median (worst)", "in", "found", "examples", "seconds", "to shrink", "requests", "tokens", "bytes"),
        [_searched(known[name], range(seed, seed + seeds), examples, budget, kept) for name in names],
    )


def _judged(runner: Runner, backend: str, cases: int, seed: int) -> str:
    """Return how many of the cases that ran fail, and the features that their failures need."""
    ran, failing = 0, Counter[str]()
    for case in sample(backend, cases, seed):
        verdict = runner.verdict(case)
        ran += verdict.unsupported is None
        if verdict.failures:
            failing[f"{verdict.failures[0].kind}: {', '.join(_needs(runner, case, verdict.failures[0])) or '-'}"] += 1
    words = [f"{count} {failure}" for failure, count in failing.most_common()]
    return "; ".join((f"{failing.total()} of {ran}", *words))


def _needs(runner: Runner, case: Case, failure: Observation) -> list[str]:
    """Return the clues that a failure needs, by one run of each variant that lacks one."""

    def fails(variant: Case) -> bool:
        return failure.kind in {each.kind for each in runner.verdict(variant).failures}

    among = {FEATURES[name] for name in NEEDS}
    can = resolve(case.backend).capability
    clues = needed(case, fails, allowed=lambda each: can.why_not(each) is None, among=among, runs=lambda _: 1)
    return [clue.name for clue in sorted(clues)]


def _timed(backend: str, count: int, seed: int) -> list[str]:
    """Return a row for a backend. Failing cases are counted but not timed: many of them kill their worker."""
    seconds, failed, steps = list[float](), 0, 0
    try:
        resolve(backend).prepare(lambda _: None)
        with Runner() as runner:
            start = seconds_of(lambda: runner.start(backend))
            for case in sample(backend, count, seed):
                began = time.perf_counter()
                verdict = runner.verdict(case)
                if verdict.failures or verdict.unsupported is not None:
                    failed += bool(verdict.failures)
                else:
                    seconds.append(time.perf_counter() - began)
                    steps += len(case.steps)
    except CANNOT_BE_JUDGED as error:
        raise click.ClickException(f"{backend}: {reason_of(error, backend)}") from error
    row = [backend, f"{start:.1f}"]
    if not seconds:
        return [*row, "-", "-", "-", "-", f"{failed / count:.0%}"]
    slowest = quantile(seconds, 1.0)
    return [
        *row,
        f"{len(seconds) / sum(seconds):.1f}",
        f"{steps / sum(seconds):.1f}",
        f"{median(seconds) * 1e3:.1f}",
        f"{slowest * 1e3:.0f}",
        f"{failed / count:.0%}",
    ]


class _Difference(OneByOne):
    """A judge that only reports failures of a report's kinds that the fixed release does not have.

    All other failures count as passing: a release may have several bugs that the next one fixes, and one of them may
    fail in nearly all cases. Hypothesis begins every search with the same case, whatever the seed. That case counts as
    passing, since the seeds would not be independent of each other otherwise. `examples` counts the cases on the
    release.
    """

    def __init__(self, runner: Runner, bug: Bug) -> None:
        self._runner, self._bug = runner, bug
        self.examples = 0
        self.begins = False

    def verdict(self, case: AnyCase) -> Verdict:
        """Return the failures that only this release has."""
        self.examples += 1
        if self.begins:
            self.begins = False
            return Verdict()
        found = self._runner.verdict(case, self._bug.release)
        own = tuple(each for each in found.failures if each.kind in self._bug.kinds)
        if not own or not self._bug.release_after:
            return replace(found, observations=own)
        fixed = self._runner.verdict(case, self._bug.release_after)
        if fixed.unsupported is not None:
            return Verdict(unsupported=fixed.unsupported)
        others = {fingerprint_anywhere(each) for each in fixed.failures}
        return replace(found, observations=tuple(each for each in own if fingerprint_anywhere(each) not in others))

    def renew(self) -> None:
        """Run the next case in a worker that has run nothing yet."""
        self._runner.renew()


@dataclass(frozen=True)
class _Found:
    """One search: examples and seconds until it found the report, seconds to shrink, and the smallest case's size.

    `examples` is 0 if nothing was found, and the sizes are 0 if the case was not shrunk.
    """

    examples: int = 0
    seconds: float = 0.0
    shrinking: float = 0.0
    requests: int = 0
    tokens: int = 0
    nbytes: int = 0


def _searched(bug: Bug, seeds: Sequence[int], examples: int, budget: ShrinkBudget, kept: Path | None) -> list[str]:
    """Return a row for a report. Searches already in the file `kept` are skipped; new ones are appended."""
    known = _kept(kept, bug.name)
    with Runner() as runner:
        for seed in set(seeds) - known.keys():
            known[seed] = _search(_Difference(runner, bug), bug, seed, examples, budget)
            line = json.dumps({"report": bug.name, "seed": seed, **asdict(known[seed])})
            click.echo(line, err=True)
            if kept is not None:
                with kept.open("a") as lines:
                    print(line, file=lines)
    found = [each for each in known.values() if each.examples]
    shrunk = [each for each in found if each.nbytes]
    return [
        bug.name,
        bug.release,
        f"{len(found)} of {len(known)}",
        _spread([each.examples for each in found], "{:.0f}"),
        _spread([each.seconds for each in found], "{:.1f}"),
        _spread([each.shrinking for each in shrunk], "{:.1f}"),
        _spread([each.requests for each in shrunk], "{:.0f}"),
        _spread([each.tokens for each in shrunk], "{:.0f}"),
        _spread([each.nbytes for each in shrunk], "{:.0f}"),
    ]


def _kept(file: Path | None, name: str) -> dict[int, _Found]:
    """Return the searches for a report in a file, by seed."""
    if file is None or not file.exists():
        return {}
    lines = map(json.loads, file.read_text().splitlines())
    values = {field.name for field in fields(_Found)}
    return {line["seed"]: _Found(**{key: line[key] for key in values}) for line in lines if line["report"] == name}


def _search(judge: _Difference, bug: Bug, seed: int, examples: int, budget: ShrinkBudget) -> _Found:
    """Search as a campaign does until the first failure of a kind that the report has, and shrink it."""
    suspects: list[Suspect] = []

    def hear(message: AnyMessage) -> None:
        if isinstance(message, Suspect) and message.observation.kind in bug.kinds:
            suspects.append(message)

    start = time.perf_counter()
    for task in slices_of(bug.release, examples=examples, seed=seed):
        judge.begins = True
        Hunt(replace(task, shrink=NOTHING), judge, hear, capability=resolve(bug.release).capability).run(
            drawn_cases(bug.release)
        )
        if suspects:
            break
    else:
        return _Found()
    count, seen = judge.examples, time.perf_counter()
    if not budget.seconds:
        return _Found(count, seen - start)
    small: Shrunk | None = shrink(suspects[0].case, judge, budget=budget)
    case = small.case if small is not None else suspects[0].case
    assert isinstance(case, Case)
    return _Found(
        examples=count,
        seconds=seen - start,
        shrinking=time.perf_counter() - seen,
        requests=max((len(step.requests) for step in case.steps), default=0),
        tokens=max(case.slot_lengths().values(), default=0),
        nbytes=len(case_file.encode(case)),
    )


def _spread(values: Sequence[float], form: str) -> str:
    return f"{form.format(median(values))} ({form.format(max(values))})" if values else "-"


if __name__ == "__main__":
    main()
