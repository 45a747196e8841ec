"""SGLang's releases: how soon they start, how fast cases go, and how soon reports are found in those that have them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import click
from measurement import count_option, quantile, sample, seconds_of, seed_option, show, slices_of
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import on_device, resolve
from attnfuzz.harness.campaign.shrinking import NOTHING
from attnfuzz.harness.releases.replaying import CANNOT_BE_JUDGED, reason_of
from attnfuzz.harness.releases.wanted import fingerprint_anywhere
from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, ShrinkBudget, Suspect
from attnfuzz.harness.search.shrink import Shrunk, shrink
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase
from attnfuzz.reference.device import Device

RELEASES = ("0.5.9", "0.5.10.post1", "0.5.11", "0.5.14", "0.5.23")

SHRINK = ShrinkBudget(runs=2000, seconds=60.0)


@click.command()
@click.option("--release", "releases", multiple=True, default=RELEASES, show_default=True, metavar="VERSION")
@count_option("--cases", 300, "Cases per backend of a release.")
@count_option("--seeds", 20, "Searches for each report.")
@count_option("--examples", 2000, "Examples after which a search gives up.")
@seed_option
@click.option("--report", "names", multiple=True, metavar="NAME", help="Search for these alone, as sglang-21649.")
@click.option("--device", type=click.Choice([each.value for each in Device]), default="cpu", show_default=True)
def main(
    *, releases: tuple[str, ...], cases: int, seeds: int, examples: int, seed: int, names: tuple[str, ...], device: str
) -> None:
    """Time releases from PyPI, and on a CPU search each report in a release that has it.

    Fetching is no part of it. A search ends with the first failure that the release with the fix does not have.
    """
    reports = [bug for bug in load_bugs() if bug.release_after and (not names or bug.name in names)]
    unknown = set(names) - {bug.name for bug in reports}
    if unknown:
        raise click.BadParameter(f"no report {', '.join(sorted(unknown))} is in one release and fixed in another")
    show(
        "Releases",
        ("backend", "start, s", "cases/s", "median, ms", "worst, ms", "fail"),
        [
            _timed(on_device(f"sglang=={release}:{kind}", Device(device)), cases, seed)
            for release in releases
            for kind in SGLANG.kinds
        ],
    )
    if Device(device) is not Device.CPU:
        return
    show(
        "Reports",
        ("median (worst)", "in", "found", "examples", "seconds", "to shrink", "requests", "tokens", "bytes"),
        [_searched(bug, range(1, seeds + 1), examples) for bug in reports],
    )


def _timed(backend: str, count: int, seed: int) -> list[str]:
    """A row about a backend; cases that fail are counted and not timed, since many of them kill their worker."""
    seconds, failed = [], 0
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
    except CANNOT_BE_JUDGED as error:
        raise click.ClickException(f"{backend}: {reason_of(error, backend)}") from error
    row = [backend, f"{start:.1f}"]
    if not seconds:
        return [*row, "-", "-", "-", f"{failed / count:.0%}"]
    slowest = quantile(seconds, 1.0)
    return [
        *row,
        f"{len(seconds) / sum(seconds):.0f}",
        f"{median(seconds) * 1e3:.1f}",
        f"{slowest * 1e3:.0f}",
        f"{failed / count:.0%}",
    ]


class _Difference(OneByOne):
    """Reports failures of a release that the fixed one does not have, so that other bugs count as passing.

    Hypothesis begins every search with the same case, whatever the seed: it counts as passing, since the seeds would
    not be independent of each other. `examples` counts cases on the release.
    """

    def __init__(self, runner: Runner, bug: Bug) -> None:
        self._runner, self._bug = runner, bug
        self.examples = 0
        self.begins = False

    def verdict(self, case: AnyCase) -> Verdict:
        """The failures of the release alone."""
        self.examples += 1
        if self.begins:
            self.begins = False
            return Verdict()
        found = self._runner.verdict(case, self._bug.release)
        if not found.failures:
            return found
        fixed = self._runner.verdict(case, self._bug.release_after)
        if fixed.unsupported is not None:
            return Verdict(unsupported=fixed.unsupported)
        others = {fingerprint_anywhere(each) for each in fixed.failures}
        return replace(
            found, observations=tuple(each for each in found.failures if fingerprint_anywhere(each) not in others)
        )

    def renew(self) -> None:
        """Have the next case run by a worker that has run nothing."""
        self._runner.renew()


@dataclass(frozen=True)
class _Found:
    """One search that found it: examples and seconds until then, seconds to shrink, and the smallest case."""

    examples: int
    seconds: float
    shrinking: float
    case: Case

    @property
    def requests(self) -> int:
        """Real requests in the step that has most."""
        return max((len(step.requests) for step in self.case.steps), default=0)

    @property
    def tokens(self) -> int:
        """Keys of the request that has most."""
        return max(self.case.slot_lengths().values(), default=0)

    @property
    def size(self) -> int:
        """Bytes of the case's file."""
        return len(case_file.encode(self.case))


def _searched(bug: Bug, seeds: Sequence[int], examples: int) -> list[str]:
    """A row about a report."""
    found: list[_Found] = []
    with Runner() as runner:
        runner.start(bug.release)
        runner.start(bug.release_after)
        for seed in seeds:
            one = _search(_Difference(runner, bug), bug, seed, examples)
            if one is not None:
                found.append(one)
    return [
        bug.name,
        bug.release,
        f"{len(found)} of {len(seeds)}",
        _spread([each.examples for each in found], "{:.0f}"),
        _spread([each.seconds for each in found], "{:.1f}"),
        _spread([each.shrinking for each in found], "{:.1f}"),
        _spread([each.requests for each in found], "{:.0f}"),
        _spread([each.tokens for each in found], "{:.0f}"),
        _spread([each.size for each in found], "{:.0f}"),
    ]


def _search(judge: _Difference, bug: Bug, seed: int, examples: int) -> _Found | None:
    """Search as a campaign does, up to the first failure of a kind that the report has, and shrink that."""
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
        return None
    count, seen = judge.examples, time.perf_counter()
    small: Shrunk | None = shrink(suspects[0].case, judge, budget=SHRINK)
    case = small.case if small is not None else suspects[0].case
    assert isinstance(case, Case)
    return _Found(count, seen - start, time.perf_counter() - seen, case)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{form.format(median(values))} ({form.format(max(values))})" if values else "-"


if __name__ == "__main__":
    main()
