"""Cost of a worker's death: time from a deadly case to the next verdict, and the rate when every case is deadly."""

from collections.abc import Iterable
from functools import partial
from itertools import cycle, islice
from statistics import median

import click
from measurement import Decorator, count_option, known_backend, quantile, sample, seconds_of, seed_option, show

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import DEATHS, Kind
from attnfuzz.reference.case import Case

HEALTHY_CASES = 20
"""Number of cases among which the fastest healthy case is chosen."""


def _backend_option(name: str, default: str, text: str) -> Decorator:
    """Return an option for one backend, which has to exist and to run here."""
    return click.option(name, default=default, show_default=True, metavar="NAME", callback=known_backend, help=text)


@click.command()
@count_option("--deaths", 50, "Deaths to measure one by one, and then in a row.")
@count_option("--calm", 5, "Healthy cases between two deaths, in which a spare gets ready: more on a GPU.")
@count_option("--starts", 3, "Cold starts to measure.")
@count_option("--cases", 200, "Cases among which deadly ones are looked for.")
@_backend_option("--deadly", "trtllm_mha@21649-before", "A backend of which some cases kill their worker.")
@_backend_option("--healthy", "trtllm_mha", "One on the same device whose cases pass.")
@seed_option
def main(*, deaths: int, calm: int, starts: int, cases: int, deadly: str, healthy: str, seed: int) -> None:
    """Measure how long the next verdict takes after a worker's death, compared with a cold start.

    By default the deaths are segmentation faults in real kernels. The clock starts when the deadly case is submitted,
    so the time before its death is included.
    """
    with Runner((deadly, healthy)) as runner:
        killing = _deadly(runner, sample(deadly, cases, seed))
        quickest = _quickest(runner, healthy, seed)
        alone, dying, afterwards = [], [], []
        for case in islice(cycle(killing), deaths):
            alone += [seconds_of(partial(runner.verdict, quickest)) for _ in range(calm)]
            dying.append(seconds_of(partial(runner.verdict, case)))
            afterwards.append(seconds_of(partial(runner.verdict, quickest)))
        before = runner.restarts
        in_a_row = seconds_of(lambda: [runner.verdict(case) for case in islice(cycle(killing), deaths)])
        died = runner.restarts - before
    through_death = [sum(both) for both in zip(dying, afterwards, strict=True)]
    cold = [seconds_of(partial(_cold_start, quickest)) for _ in range(starts)]
    show(
        "Deaths",
        ("", "aim", "median", "95 %"),
        [
            ("a verdict while nothing dies", "", *_milliseconds(alone)),
            ("a deadly case and the next verdict", "< 50 ms", *_milliseconds(through_death)),
            ("of these: up to the verdict on the death", "", *_milliseconds(dying)),
            ("of these: the next verdict", "", *_milliseconds(afterwards)),
            ("a cold start to the first verdict", "", *_milliseconds(cold)),
            ("a death is quicker by", "", f"{median(cold) / median(through_death):.0f} x", ""),
            (f"verdicts per second, {died} deaths in a row", ">= 10", f"{deaths / in_a_row:.0f}", ""),
            ("different deadly cases among them", "", f"{min(len(killing), deaths)}", ""),
        ],
    )


def _deadly(runner: Runner, cases: Iterable[Case]) -> list[Case]:
    """Return the cases that kill their worker at once. A hang would measure its timeout instead."""
    at_once = DEATHS - {Kind.HANG}
    deadly = [case for case in cases if any(each.kind in at_once for each in runner.verdict(case).observations)]
    if not deadly:
        raise click.ClickException("none of the cases is deadly: look at more, with a larger --cases")
    return deadly


def _quickest(runner: Runner, healthy: str, seed: int) -> Case:
    """Return the fastest case of a sample: the benchmark measures the death, not the case."""
    return min(sample(healthy, HEALTHY_CASES, seed), key=lambda case: seconds_of(partial(runner.verdict, case)))


def _cold_start(case: Case) -> None:
    with Runner((case.backend,)) as runner:
        runner.verdict(case)


def _milliseconds(times: list[float]) -> tuple[str, str]:
    return f"{median(times) * 1e3:.1f} ms", f"{quantile(times, 0.95) * 1e3:.1f} ms"


if __name__ == "__main__":
    main()
