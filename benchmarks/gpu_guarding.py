"""Cost of guards on a GPU: the same cases in guarded memory, in torch's memory, and in torch's under memcheck."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import msgspec
import torch
from gpu_measurement import Table, require_gpu
from in_process import use_one_thread
from measurement import backends_option, count_option, json_option, sample, seed_option

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.memory.cuda.memory import PlainCudaMemory
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.case import Case

MEMCHECK = ("compute-sanitizer", "--tool", "memcheck")
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

PROCESSES: tuple[tuple[str, tuple[str, ...], str, dict[str, str]], ...] = (
    ("plain", (), "plain", {}),
    ("guarded", (), "guarded", {}),
    ("memcheck", MEMCHECK, "plain", {}),
    ("memcheck, no caching allocator", MEMCHECK, "plain", UNCACHED),
)
"""(title, tool, way, environment) of the processes that are compared as a whole."""

WAYS = ("guarded", "plain")
BLOCK = 10
"""Number of cases that run one way before they run the other way."""


@click.command()
@backends_option(("cuda_fixup",))
@count_option("--cases", 60, "Cases per backend; those that fail are left out.")
@count_option("--rounds", 3, "How often each case runs in each way.")
@click.option("--way", type=click.Choice(WAYS), help="For its own use: run the cases on its input in one way.")
@seed_option
@json_option
def main(
    *, backends: tuple[str, ...], cases: int, rounds: int, way: str | None, seed: int, json_file: Path | None
) -> None:
    """Compare the time of judged cases, kernels included, in guarded memory and in torch's.

    The two ways take turns in one process, ten cases at a time, and each case counts with the median of its rounds. A
    row has the medians of the cases' times and of their ratios. Then whole processes run all cases once: plain,
    guarded, and plain under memcheck.
    """
    require_gpu()
    use_one_thread()
    if way is not None:
        for case in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Case]):
            _run(case, way)
        return
    passing = {name: _passing(name, cases, seed) for name in backends}
    columns = ("", "guarded, ms", "plain, ms", "ratio", "its kernels", "its kernels", "ratio")
    table = Table("Judged cases in guarded and in plain memory", columns, json_file)
    for name, drawn in passing.items():
        cells = []
        for guarded, plain in _in_turn(drawn, rounds):
            ratios = [one / other for one, other in zip(guarded, plain, strict=True) if other]
            cells += [f"{1e3 * median(guarded):.2f}", f"{1e3 * median(plain):.2f}", f"{median(ratios):.2f}"]
        table.row(f"{name}, {len(drawn)} cases", *cells)
    _compare_processes([case for drawn in passing.values() for case in drawn], json_file)


def _passing(name: str, count: int, seed: int) -> list[Case]:
    """Return the drawn cases that pass: a fault would end the process that measures."""
    with Runner((name,)) as runner:
        verdicts = ((case, runner.verdict(case)) for case in sample(name, count, seed))
        passing = [case for case, verdict in verdicts if not verdict.failures and verdict.unsupported is None]
    if not passing:
        raise click.ClickException(f"no case of {name} passes: choose another backend")
    return passing


def _in_turn(cases: Sequence[Case], rounds: int) -> list[tuple[list[float], list[float]]]:
    """Return the seconds of each case (guarded, plain), as a whole and in its kernels: medians over the rounds."""
    times: dict[str, list[list[tuple[float, float]]]] = {way: [[] for _ in cases] for way in WAYS}
    for index in range(-1, rounds):
        for begin in range(0, len(cases), BLOCK):
            for way in WAYS if index % 2 else WAYS[::-1]:
                for number in range(begin, min(begin + BLOCK, len(cases))):
                    start = perf_counter()
                    kernels = _run(cases[number], way)
                    # The first round includes one-time costs.
                    if index >= 0:
                        times[way][number].append((perf_counter() - start, kernels))
    guarded, plain = (
        [[median(each[part] for each in case) for case in times[way]] for part in range(2)] for way in WAYS
    )
    return list(zip(guarded, plain, strict=True))


def _run(case: Case, way: str) -> float:
    """Run and judge a case in this process. Return the seconds spent in its kernels."""
    memory = PlainCudaMemory(case.outputs, torch.device("cuda", 0)) if way == "plain" else None
    task = Task(case=case, backend=case.backend)
    return Execution(task, lambda _: None, memory=memory).run().seconds["kernel"]


def _compare_processes(cases: list[Case], json_file: Path | None) -> None:
    table = Table(f"Processes that run {len(cases)} cases", ("", "seconds", "over plain", "exit code"), json_file)
    plain = 0.0
    for title, tool, way, environment in PROCESSES:
        if tool and shutil.which(tool[0]) is None:
            click.echo(f"{tool[0]} is not on PATH: it comes with NVIDIA's CUDA toolkit")
            continue
        start = perf_counter()
        done = subprocess.run(
            [*tool, sys.executable, __file__, "--way", way],
            input=msgspec.json.encode(cases),
            env={**os.environ, **environment},
            capture_output=True,
            check=False,
        )
        seconds = perf_counter() - start
        if done.returncode:
            click.echo(done.stderr[-1000:])
        plain = plain or seconds
        table.row(title, f"{seconds:.1f}", f"{seconds / plain:.2f}", str(done.returncode))


if __name__ == "__main__":
    main()
