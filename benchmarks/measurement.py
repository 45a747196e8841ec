"""Shared code of the benchmarks: a fixed sample of cases, a clock, and a plain table that names the machine."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from results import record
from rich.console import Console
from rich.table import Table

from attnfuzz.harness.backends.load import BackendFileError
from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE, drawn_slice
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.search.messages import Slice
from attnfuzz.reference.case import Case

WIDTH = 110

Cells = Sequence[str]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

ATTENTION = ("trtllm_mha", "trtllm_mla", "torch_sdpa")
"""The backends that most benchmarks measure by default."""

seed_option = click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Draws the cases.")
json_option = click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the numbers to this file, too."
)


def backends_option(default: Sequence[str] = ATTENTION) -> Decorator:
    """Return an option for the backends to measure, which have to exist and to run here."""
    return click.option(
        "--backend",
        "backends",
        multiple=True,
        default=default,
        show_default=True,
        metavar="NAME",
        callback=_known,
        help="Backend to measure; may be given several times.",
    )


def slices_of(backend: str, *, examples: int, seed: int) -> Iterator[Slice]:
    """Yield the slices of a campaign on one backend, each with its own seed, as if none ended early."""
    for index, first in enumerate(range(0, examples, EXAMPLES_PER_SLICE)):
        yield drawn_slice(backend, index, min(EXAMPLES_PER_SLICE, examples - first), seed=seed)


def known_backend(_ctx: click.Context, _parameter: click.Parameter, name: str) -> str:
    """Check an option's backend, which has to exist and to run here."""
    try:
        reason = resolve(name).missing()
    except (UnknownBackend, BackendFileError) as error:
        raise click.BadParameter(str(error)) from error
    if reason is not None:
        raise click.BadParameter(f"{name} can't run here: {reason}")
    return name


def _known(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(known_backend(ctx, parameter, name) for name in names))


def count_option(name: str, default: int, text: str) -> Decorator:
    """Return an option for a number of things to measure, at least 1."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, help=text)


def sample(backend: str, count: int, seed: int) -> list[Case]:
    """Return the first `count` cases that a search with this seed draws for a backend."""
    drawn: list[Case] = []
    run_examples(drawn_cases(backend), drawn.append, examples=count, seed_of=seed)
    return drawn


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def warm(runner: Runner, cases: Sequence[Case]) -> None:
    """Run cases once unmeasured, to keep one-time costs out of the measurements.

    Raises click.ClickException if a case fails: its time would mean nothing.
    """
    for case in cases:
        verdict = runner.verdict(case)
        if verdict.failures:
            raise click.ClickException(f"{case.backend} fails, choose one that passes: {verdict.failures[0].message}")


def show(title: str, columns: Cells, rows: Sequence[Cells]) -> None:
    """Print a table whose first column names the measurement, and below it the machine and its load.

    With RESULTS in the environment, also write it into that page of docs/results.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(table)
    console.print(_machine())
    if page := os.environ.get("RESULTS"):
        record(Path(page), title, columns, rows, _machine())


def _machine() -> str:
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{cores} cores, load {load:.1f} in the last minute, Python {python}, torch {torch.__version__}"
