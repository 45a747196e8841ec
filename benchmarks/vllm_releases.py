"""vLLM's releases: of each kind of backend, the drawn cases that fail, and the features that their failures need.

`attnfuzz sweep` confirms and minimizes failures, and runs those of one release in all. This only judges cases.
"""

from collections import Counter

import click
from measurement import count_option, sample, seed_option, show

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce.ablation import FEATURES, needed
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.kinds import KINDS
from attnfuzz.reference.case import Case

NEEDS = ("query scale", "kept queries", "K scale", "V scale", "fp8 KV", "soft cap", "sinks", "window", "several chunks")
"""The features that are looked at: those that reports name."""

RELEASES = ("0.26.0", "0.28.0", "0.29.0", "0.31.0", "0.32.0", "0.33.0")


@click.command()
@click.option("--release", "releases", multiple=True, default=RELEASES, show_default=True, metavar="VERSION")
@click.option("--kind", "kinds", multiple=True, default=ENGINE.default_kinds, type=click.Choice(tuple(KINDS)))
@count_option("--cases", 10, "Cases per backend of a release.")
@seed_option
def main(*, releases: tuple[str, ...], kinds: tuple[str, ...], cases: int, seed: int) -> None:
    """Judge drawn cases on each kind of backend of releases."""
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
