"""Cost of isolation and guards: workers against the same cases in-process and in a fresh process per case."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import click
import in_process
import msgspec
from in_process import use_one_thread, verdict_in_process
from measurement import backends_option, count_option, sample, seconds_of, seed_option, show, warm

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.case import Case

BLOCK = 10
"""Number of cases that run one way before they run the other way."""

ROWS = (
    ("judged cases per second, isolated and guarded", ""),
    ("the same cases in-process, without either", ""),
    ("ratio", ">= 0.8"),
    ("a small case, isolated and guarded", ""),
    ("added to a small case", "<= 1 ms"),
    ("a case in a fresh process", ""),
    ("isolated workers are faster by", ">= 20 x"),
)


@dataclass(frozen=True)
class Costs:
    """Seconds of each case: medians over the rounds."""

    isolated: list[float]
    plain: list[float]

    def small(self) -> list[int]:
        """Return the indices of the faster half of the cases."""
        order = sorted(range(len(self.plain)), key=self.plain.__getitem__)
        return order[: (len(order) + 1) // 2]


@click.command()
@backends_option()
@count_option("--cases", 200, "Cases per backend.")
@count_option("--rounds", 5, "How often each case runs in each way.")
@count_option("--fresh", 7, "Cases per backend that also run in a fresh process each.")
@seed_option
def main(*, backends: tuple[str, ...], cases: int, rounds: int, fresh: int, seed: int) -> None:
    """Compare judged cases per second: in guarded workers, in-process without either, and in fresh processes.

    The ways take turns, ten cases at a time, and each case counts with the median of its rounds. The small cases are
    the faster half. Drawing is left out.
    """
    use_one_thread()
    with Runner(backends) as runner:
        columns = [_column(runner, sample(name, cases, seed), rounds, fresh) for name in backends]
    rows = [(*row, *values) for row, values in zip(ROWS, zip(*columns, strict=True), strict=True)]
    show("Isolation", ("", "aim", *backends), rows)


def _column(runner: Runner, cases: list[Case], rounds: int, fresh: int) -> list[str]:
    warm(runner, cases)
    costs = _compare(cases, rounds, runner.verdict, verdict_in_process)
    small = costs.small()
    # Fresh processes alternate with the workers case by case.
    in_turn = [
        (seconds_of(partial(_in_fresh_process, c)), seconds_of(partial(runner.verdict, c))) for c in cases[:fresh]
    ]
    process, worker = (median(times) for times in zip(*in_turn, strict=True))
    return [
        f"{len(cases) / sum(costs.isolated):.0f}",
        f"{len(cases) / sum(costs.plain):.0f}",
        f"{sum(costs.plain) / sum(costs.isolated):.2f}",
        f"{median(costs.isolated[case] for case in small) * 1e3:.2f} ms",
        f"{median(costs.isolated[case] - costs.plain[case] for case in small) * 1e3:.2f} ms",
        f"{process * 1e3:.0f} ms",
        f"{process / worker:.0f} x",
    ]


def _compare(
    cases: Sequence[Case], rounds: int, isolated: Callable[[Case], object], plain: Callable[[Case], object]
) -> Costs:
    """Time each case in both ways, which take turns block by block. The order alternates from round to round."""
    times: dict[Callable[[Case], object], list[list[float]]] = {way: [[] for _ in cases] for way in (isolated, plain)}
    for index in range(rounds):
        numbers = iter(range(len(cases)))
        while block := list(islice(numbers, BLOCK)):
            for way in (isolated, plain) if index % 2 else (plain, isolated):
                for number in block:
                    times[way][number].append(seconds_of(partial(way, cases[number])))
    return Costs([median(each) for each in times[isolated]], [median(each) for each in times[plain]])


def _in_fresh_process(case: Case) -> None:
    script = [sys.executable, str(Path(in_process.__file__))]
    subprocess.run(script, input=msgspec.json.encode(case), stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
