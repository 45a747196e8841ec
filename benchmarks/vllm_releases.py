"""vLLM's releases: drawn cases that fail, how soon releases start and how fast cases go, how soon reports are found."""

from collections import Counter
from pathlib import Path

import click
from measurement import count_option, sample, seed_option, show
from msgspec.structs import replace
from releases import SEARCHED, SHRINK, TIMED, reports_of, searched, timed

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce.ablation import FEATURES, needed
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.kinds import KINDS
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.case import Case

NEEDS = ("query scale", "kept queries", "K scale", "V scale", "fp8 KV", "soft cap", "sinks", "window", "several chunks")
"""The features that are looked at: those that reports name."""

RELEASES = ("0.26.0", "0.28.0", "0.29.0", "0.31.0", "0.32.0", "0.33.0")


kinds_option = click.option(
    "--kind", "kinds", multiple=True, default=ENGINE.default_kinds, type=click.Choice(tuple(KINDS))
)


@click.group()
def main() -> None:
    """Measure releases from PyPI. Fetching is no part of it."""


@main.command()
@click.option("--release", "releases", multiple=True, default=RELEASES, show_default=True, metavar="VERSION")
@kinds_option
@count_option("--cases", 10, "Cases per backend of a release.")
@seed_option
def failing(*, releases: tuple[str, ...], kinds: tuple[str, ...], cases: int, seed: int) -> None:
    """Judge drawn cases on each kind of backend of releases; print the features that failures need.

    `attnfuzz sweep` confirms and minimizes failures, and runs those of one release in all. This only judges cases.
    """
    columns = []
    for release in releases:
        column = []
        # Workers of one release import it once for all kinds.
        with Runner() as runner:
            for kind in kinds:
                column.append(_judged(runner, f"vllm=={release}:{kind}", cases, seed))
                click.echo(f"{release} {kind}: {column[-1]}", err=True)
        columns.append(column)
    show("Failing cases", ("backend", *releases), list(zip(kinds, *columns, strict=True)))


@main.command()
@click.option("--release", default=RELEASES[-1], show_default=True, metavar="VERSION")
@kinds_option
@count_option("--cases", 100, "Cases per backend.")
@seed_option
def speed(*, release: str, kinds: tuple[str, ...], cases: int, seed: int) -> None:
    """Time the start of a release, and cases on each kind of backend, judged."""
    rows = []
    for kind in kinds:
        rows.append(timed(f"vllm=={release}:{kind}", cases, seed))
        click.echo(": ".join(("speed", ", ".join(rows[-1]))), err=True)
    show(f"vLLM {release}", TIMED, rows)


@main.command()
@click.option("--report", "names", multiple=True, metavar="NAME", help="Search for these alone, as vllm-48003.")
@count_option("--seeds", 20, "Searches for each report, with seeds from --seed on.")
@seed_option
@count_option("--examples", 500, "Examples after which a search gives up.")
@click.option("--shrink", type=float, default=SHRINK.seconds, show_default=True, help="Seconds; 0 to leave it out.")
@click.option(
    "--kept",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the searches so far: those are in the table and not repeated, so that a run may end early.",
)
def reports(*, names: tuple[str, ...], seeds: int, seed: int, examples: int, shrink: float, kept: Path | None) -> None:
    """Search for each report in a release that has it, up to the first failure that the fixed one does not have."""
    budget, found = replace(SHRINK, seconds=shrink), reports_of(VLLM.name, names)
    rows = [searched(bug, range(seed, seed + seeds), examples, budget, kept) for bug in found]
    show("Reports", SEARCHED, rows)


@main.command()
def glue() -> None:
    """Count the modules and lines between the harness and each engine, and those that engines share."""
    kernels = Path(__file__).parent.parent / "kernels"
    rows = []
    for folder in ("vllm", "sglang", "releases"):
        files = [*(kernels / folder).rglob("*.py")]
        rows.append(
            (f"kernels/{folder}", str(len(files)), f"{sum(len(each.read_text().splitlines()) for each in files):,}")
        )
    show("Glue", ("folder", "modules", "lines"), rows)


def _judged(runner: Runner, backend: str, cases: int, seed: int) -> str:
    """The number of cases that fail, of those that ran, and the features that their failures need."""
    ran, failing = 0, Counter[str]()
    for case in sample(backend, cases, seed):
        verdict = runner.verdict(case)
        ran += verdict.unsupported is None
        if verdict.failures:
            failing[f"{verdict.failures[0].kind}: {', '.join(_needs(runner, case, verdict.failures[0])) or '-'}"] += 1
    words = [f"{count} {failure}" for failure, count in failing.most_common()]
    return "; ".join((f"{failing.total()} of {ran}", *words))


def _needs(runner: Runner, case: Case, failure: Observation) -> list[str]:
    """The clues that a failure needs, by one run of each variant without one."""

    def fails(variant: Case) -> bool:
        return failure.kind in {each.kind for each in runner.verdict(variant).failures}

    among = {FEATURES[name] for name in NEEDS}
    can = resolve(case.backend).capability
    clues = needed(case, fails, allowed=lambda each: can.why_not(each) is None, among=among, fresh_seeds=0)
    return [clue.name for clue in sorted(clues)]


if __name__ == "__main__":
    main()
