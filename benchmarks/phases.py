"""Where a campaign's time goes: the share of drawing, placing, kernels, reference, judging and transport."""

import time
from collections import defaultdict

import click
from measurement import backends_option, count_option, sample, seed_option, show, warm

from attnfuzz.harness.campaign.job import collect_garbage_less
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import derive_seed, drawn_cases, run_examples
from attnfuzz.reference.case import Case

SLICES = 5
WARM = 20
BATCH, BATCHES = 16, 32

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
    """Show the share of each phase in a plain campaign; the backends take turns.

    Drawing is also shown in CPU time, which depends less on other work on the machine. The last row says how many cases
    could share a reference: those of one geometry among cases that are drawn one after another.
    """
    seconds: dict[str, dict[str, float]] = {name: defaultdict(float) for name in backends}
    drawing = dict.fromkeys(backends, 0.0)
    count = dict.fromkeys(backends, 0)
    with Runner(backends) as runner:
        for name in backends:
            warm(runner, sample(name, WARM, seed))
        collect_garbage_less()
        for number in range(SLICES):
            for name in backends:
                slice_seed = derive_seed(seed, name, number)
                cases, processor = _search(runner, name, -(-examples // SLICES), slice_seed, seconds[name])
                count[name] += cases
                drawing[name] += processor
    total = {name: sum(spent.values()) for name, spent in seconds.items()}
    rows = [
        (words, *(f"{seconds[name][phase] / total[name]:.0%}" for name in backends)) for phase, words in PHASES.items()
    ]
    rows.append(("cases per second", *(f"{count[name] / total[name]:.0f}" for name in backends)))
    rows.append(("a case on average", *(f"{total[name] / count[name] * 1e3:.1f} ms" for name in backends)))
    rows.append(("CPU time to draw a case", *(f"{drawing[name] / count[name] * 1e3:.1f} ms" for name in backends)))
    rows.append((f"cases of one geometry in {BATCH}", *(f"{_sharing(name, seed):.2f}" for name in backends)))
    show("Phases", ("share of the time", *backends), rows)


def _sharing(name: str, seed: int) -> float:
    """Return how many cases have the same geometry, on average, among `BATCH` that are drawn one after another."""
    cases = sample(name, BATCH * BATCHES, seed)
    starts = range(0, len(cases), BATCH)
    geometries = sum(len({case.geometry for case in cases[start : start + BATCH]}) for start in starts)
    return len(cases) / geometries


def _search(runner: Runner, name: str, examples: int, seed: int, spent: dict[str, float]) -> tuple[int, float]:
    """Run one slice and add the seconds of its phases to `spent`. Return its cases, and the CPU time of drawing."""
    cases = 0
    judging = waiting = 0.0

    def visit(case: Case) -> None:
        nonlocal cases, judging, waiting
        start, began = time.perf_counter(), time.process_time()
        verdict = runner.verdict(case)
        wall = time.perf_counter() - start
        waiting += time.process_time() - began
        cases += 1
        judging += wall
        for phase, seconds in verdict.seconds.items():
            spent[phase] += seconds
        spent["transport"] += wall - sum(verdict.seconds.values())

    start, began = time.perf_counter(), time.process_time()
    run_examples(drawn_cases(name), visit, examples=examples, seed_of=seed)
    spent["draw"] += time.perf_counter() - start - judging
    return cases, time.process_time() - began - waiting


if __name__ == "__main__":
    main()
