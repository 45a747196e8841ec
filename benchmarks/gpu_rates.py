"""Judged cases per second of each backend on a GPU, by the number of jobs, and where the time goes."""

import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Self

import click
import msgspec
from gpu_measurement import Load, Table, require_gpu
from measurement import count_option, json_option, seed_option

from attnfuzz.harness.backends.registry import fixed, resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.verdict.failures import DEATHS
from attnfuzz.kernels.cuda.visible import visible
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.reference.case import Case, Mode, Request, Step, Views

WARM = 5
ENOUGH = 1_000_000

PHASES = ("draw", "place", "kernel", "reference", "judge", "transport")

LARGE_BATCH, LARGE_KV = 64, 4096


class Measured(msgspec.Struct):
    """Measurements of one job: the numbers of judged, failing and deadly cases, and the seconds of each phase.

    `runs` are the seconds of each case, without drawing.
    """

    cases: int
    failed: int
    died: int
    runs: list[float]
    seconds: dict[str, float]


class _Over(BaseException):
    """Raised when the time is over."""


@click.command()
@click.option(
    "--backend", "backends", multiple=True, metavar="NAME", help="Backend to measure.  [default: all that run here]"
)
@click.option("--jobs", multiple=True, type=click.IntRange(min=1), default=(1, 8), show_default=True, help="Jobs.")
@count_option("--seconds", 6, "How long each backend is measured with each number of jobs.")
@click.option("--large", is_flag=True, help=f"Decodes of {LARGE_BATCH} requests of {LARGE_KV:,} keys, not drawn cases.")
@click.option("--job", type=int, help="For its own use: be this job.")
@seed_option
@json_option
def main(
    *,
    backends: tuple[str, ...],
    jobs: tuple[int, ...],
    seconds: int,
    large: bool,
    job: int | None,
    seed: int,
    json_file: Path | None,
) -> None:
    """Run jobs that draw and judge cases, each with its own worker, and count once all of them are warm."""
    require_gpu()
    if job is not None:
        _be_job(job, seconds, seed + job, large=large)
        return
    chosen = backends or tuple(
        each.name for each in GPU_BACKENDS if fixed(each.name) == each.name and each.missing() is None
    )
    if large:
        chosen = tuple(name for name in chosen if Mode.DECODE in resolve(name).capability.modes)
    columns = ("", "jobs", "cases/s", "failing", "deaths", "median, ms", *PHASES, "GPU busy")
    title = f"{LARGE_BATCH} requests of {LARGE_KV:,} keys" if large else "Drawn cases"
    table = Table(f"{title}: judged per second, and shares of the jobs' time", columns, json_file)
    options = ("--seconds", str(seconds), "--seed", str(seed), *(("--large",) if large else ()))
    for count in jobs:
        with Jobs(count, options) as started:
            for backend in chosen:
                done, busy = started.measure(backend)
                table.row(backend, str(count), *_cells(done), f"{busy:.0%}")


def _cells(done: Sequence[Measured]) -> tuple[str, ...]:
    total: Counter[str] = Counter()
    for each in done:
        total.update(each.seconds)
    cases, everything = sum(each.cases for each in done), sum(total.values())
    rate = sum(each.cases / sum(each.seconds.values()) for each in done)
    failing = f"{sum(each.failed for each in done) / cases:.0%}" if cases else "-"
    typical = 1e3 * median(seconds for each in done for seconds in each.runs)
    deaths = sum(each.died for each in done)
    shares = (f"{total[phase] / everything:.0%}" for phase in PHASES)
    return f"{rate:.1f}", failing, str(deaths), f"{typical:.1f}", *shares


class Jobs:
    """Processes that judge cases at the same time, of one backend after another."""

    def __init__(self, count: int, options: Sequence[str]) -> None:
        command = [sys.executable, __file__, *options]
        self._processes = [
            subprocess.Popen([*command, "--job", str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._processes:
            process.communicate()

    def measure(self, backend: str) -> tuple[list[Measured], float]:
        """Measure a backend in every job. Return the measurements and the GPUs' load, once all jobs are warm."""
        self._say(backend)
        self._hear()
        with Load() as load:
            self._say("go")
            done = [msgspec.json.decode(answer, type=Measured) for answer in self._hear()]
        return done, load.share

    def _say(self, line: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _hear(self) -> list[str]:
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(process.stdout.readline())
            if not answers[-1]:
                raise click.ClickException("a job died: its output stands above")
        return answers


def _be_job(number: int, seconds: int, seed: int, *, large: bool) -> None:
    """Be a job: for each backend named on stdin, get warm, say so, wait for a line, and measure."""
    with Runner(device_index=number % len(visible())) as runner:
        for line in sys.stdin:
            backend = line.strip()
            _measure(runner, backend, seed, cases=WARM, large=large)
            click.echo("ready")
            sys.stdin.readline()
            measured = _measure(runner, backend, seed + 1, seconds=seconds, large=large)
            click.echo(msgspec.json.encode(measured))


def _measure(
    runner: Runner, backend: str, seed: int, *, cases: int = ENOUGH, seconds: float = math.inf, large: bool
) -> Measured:
    """Draw and judge a number of cases, or for a number of seconds."""
    measured = Measured(cases=0, failed=0, died=0, runs=[], seconds=dict.fromkeys(PHASES, 0.0))
    judging = 0.0
    begin = time.perf_counter()

    def visit(case: Case) -> None:
        nonlocal judging
        start = time.perf_counter()
        verdict = runner.verdict(_enlarged(case) if large else case)
        now = time.perf_counter()
        judging += now - start
        measured.cases += verdict.unsupported is None
        measured.failed += bool(verdict.failures)
        measured.died += any(each.kind in DEATHS for each in verdict.failures)
        measured.runs.append(now - start)
        for phase, spent in verdict.seconds.items():
            measured.seconds[phase] += spent
        measured.seconds["transport"] += now - start - sum(verdict.seconds.values())
        if now > begin + seconds:
            raise _Over

    with suppress(_Over):
        run_examples(drawn_cases(backend), visit, examples=cases, seed_of=seed)
    measured.seconds["draw"] = time.perf_counter() - begin - judging
    return measured


def _enlarged(case: Case) -> Case:
    """Return a large decode with the case's geometry, KV view and seed."""
    requests = tuple(Request(slot, 1, LARGE_KV) for slot in range(LARGE_BATCH))
    step = Step(mode=Mode.DECODE, requests=requests, padded_tokens=LARGE_BATCH, tokens_per_request=1)
    views = Views(kv=case.views.kv)
    return Case(backend=case.backend, geometry=case.geometry, steps=(step,), views=views, seed=case.seed)


if __name__ == "__main__":
    main()
