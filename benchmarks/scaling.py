"""Scaling over GPUs: judged cases per second with one GPU and with several, through job processes and through Ray."""

import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import click
from measurement import count_option, json_option, known_backend, seed_option, show

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.jobs import JobProcesses, Jobs
from attnfuzz.harness.campaign.prepare import prepare
from attnfuzz.harness.campaign.ray_jobs import LOCAL, RayJobs
from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE, drawn_slice
from attnfuzz.harness.search.messages import JobSetup, SliceDone, Tally
from attnfuzz.reference.device import Device

WAYS = ("jobs", "ray")

SECONDS_PER_LOOK = 0.1

SECONDS_TO_START = 120.0


@click.command()
@click.option("--backend", default="sdpa_flash", callback=known_backend, show_default=True, help="Backend to judge.")
@click.option("--gpus", multiple=True, type=click.IntRange(min=1), default=(1, 2), show_default=True, help="GPUs.")
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS, show_default=True, help="Ways.")
@count_option("--jobs", 7, "Jobs for each GPU.")
@count_option("--seconds", 10, "How long each is measured, from when all jobs judge cases.")
@count_option("--rounds", 2, "How often each is measured.")
@click.option("--measure", type=click.Choice(WAYS), help="For its own use: measure this way, with --jobs in all.")
@seed_option
@json_option
def main(
    *,
    backend: str,
    gpus: tuple[int, ...],
    ways: tuple[str, ...],
    jobs: int,
    seconds: int,
    rounds: int,
    measure: str | None,
    seed: int,
    json_file: Path | None,
) -> None:
    """Compare numbers of GPUs, in turn, each in a process that sees that many. On a CPU, only the jobs differ.

    Slices run one after another on each job, without a campaign around them.
    """
    if measure is not None:
        click.echo(f"{_rate(backend, measure, jobs, seconds, seed)}")
        return
    prepare((backend,), click.echo)
    rates: dict[tuple[str, int], list[float]] = {(way, count): [] for way in ways for count in gpus}
    for _ in range(rounds):
        for (way, count), found in rates.items():
            found.append(_in_a_process(backend, way, count, jobs, seconds, seed))
            # With many jobs, a process takes a minute to start.
            click.echo(f"{way}, {count} GPUs: {found[-1]:.0f} cases per second", err=True)
    rows = []
    for way in ways:
        best = {count: max(rates[way, count]) for count in gpus}
        for count, rate in best.items():
            linear = rate / best[gpus[0]] / (count / gpus[0])
            spread = f"{min(rates[way, count]):.0f} to {rate:.0f}"
            rows.append((way, str(count), str(count * jobs), spread, f"{linear:.2f}"))
    show(backend, ("through", "GPUs", "jobs", "cases per second", "best, over linear"), rows)
    if json_file is not None:
        json_file.write_text(json.dumps([[way, count, found] for (way, count), found in rates.items()]))


def _in_a_process(backend: str, way: str, gpus: int, jobs: int, seconds: int, seed: int) -> float:
    """Measure in a process that sees the first `gpus` GPUs."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
    options = ("--backend", backend, "--jobs", str(gpus * jobs), "--seconds", str(seconds), "--seed", str(seed))
    command = [sys.executable, __file__, "--measure", way, *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{way} with {gpus} GPUs ended with status {done.returncode}: see above")
    return float(done.stdout.split()[-1])


def _rate(backend: str, way: str, count: int, seconds: float, seed: int) -> float:
    """Return the cases per second of `count` jobs."""
    setup = JobSetup(backends=(backend,), contract="declared", guard=None)
    on_gpu = resolve(backend).capability.device is Device.CUDA
    jobs: AbstractContextManager[Jobs] = (
        JobProcesses(count, setup) if way == "jobs" else RayJobs(count, setup, address=LOCAL, on_gpu=on_gpu)
    )
    with jobs as running:
        return _measured(running, backend, seconds, seed)


def _measured(jobs: Jobs, backend: str, seconds: float, seed: int) -> float:
    """Return the cases per second, counted from when every job has judged some."""
    slices = 0
    active: set[int] = set()
    for job in range(jobs.count):
        jobs.start(job, drawn_slice(backend, slices, EXAMPLES_PER_SLICE, seed=seed))
        slices += 1
    cases, begun = 0, 0.0
    latest = time.monotonic() + SECONDS_TO_START
    while not begun or time.monotonic() < begun + seconds:
        if not begun and time.monotonic() > latest:
            raise click.ClickException(f"{len(active)} of {jobs.count} jobs judge cases after {SECONDS_TO_START:.0f} s")
        received = jobs.next_message(SECONDS_PER_LOOK)
        if received is None:
            continue
        job, message = received
        if isinstance(message, Tally):
            active.add(job)
            cases += message.cases if begun else 0
        elif isinstance(message, SliceDone):
            jobs.start(job, drawn_slice(backend, slices, EXAMPLES_PER_SLICE, seed=seed))
            slices += 1
        if not begun and len(active) == jobs.count:
            begun = time.monotonic()
    return cases / (time.monotonic() - begun)


if __name__ == "__main__":
    main()
