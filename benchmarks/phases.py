"""Where a campaign's time goes."""

import time
from collections import defaultdict

import click
from measurement import backends_option, count_option, sample, seed_option, show, warm

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import derive_seed, drawn_cases, run_examples
from attnfuzz.reference.case import Case

SLICES = 5
WARM = 20

PHASES = {
    "draw": "drawing",
    "place": "placing: values, plans, guards",
    "kernel": "kernels",
    "reference": "reference",
    "judge": "judging",
    "transport": "transport, the rest",
}


@click.command()
@backends_option()
@count_option("--examples", 1000, "Cases per backend.")
@seed_option
def main(*, backends: tuple[str, ...], examples: int, seed: int) -> None:
    """Show the share of each phase in a plain campaign; the backends take turns."""
    seconds: dict[str, dict[str, float]] = {name: defaultdict(float) for name in backends}
    count = dict.fromkeys(backends, 0)
    with Runner(backends) as runner:
        for name in backends:
            warm(runner, sample(name, WARM, seed))
        for number in range(SLICES):
            for name in backends:
                slice_seed = derive_seed(seed, name, number)
                count[name] += _search(runner, name, -(-examples // SLICES), slice_seed, seconds[name])
    total = {name: sum(spent.values()) for name, spent in seconds.items()}
    rows = [
        (words, *(f"{seconds[name][phase] / total[name]:.0%}" for name in backends)) for phase, words in PHASES.items()
    ]
    rows.append(("cases per second", *(f"{count[name] / total[name]:.0f}" for name in backends)))
    rows.append(("a case on average", *(f"{total[name] / count[name] * 1e3:.1f} ms" for name in backends)))
    show("Phases", ("share of the time", *backends), rows)


def _search(runner: Runner, name: str, examples: int, seed: int, spent: dict[str, float]) -> int:
    """Run one slice, and add the seconds of its phases to `spent`; the number of cases."""
    cases = 0
    judging = 0.0

    def visit(case: Case) -> None:
        nonlocal cases, judging
        start = time.perf_counter()
        verdict = runner.verdict(case)
        wall = time.perf_counter() - start
        cases += 1
        judging += wall
        for phase, seconds in verdict.seconds.items():
            spent[phase] += seconds
        spent["transport"] += wall - sum(verdict.seconds.values())

    start = time.perf_counter()
    run_examples(drawn_cases(name), visit, examples=examples, seed_of=seed)
    spent["draw"] += time.perf_counter() - start - judging
    return cases


if __name__ == "__main__":
    main()
