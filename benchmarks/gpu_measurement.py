"""Shared code of the GPU benchmarks: times measured in pairs, and tables that keep their rows if stopped."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Self

import click
import torch

from attnfuzz.kernels.cuda.visible import visible

_MIN_WIDTH = 9
_LOOK_EVERY = 0.2
"""Seconds between two queries to NVML."""


class Table:
    """A table that prints each row once it is known and, if a file is named, also appends it there as a JSON line."""

    def __init__(self, title: str, columns: Sequence[str], json_file: Path | None = None) -> None:
        self._title, self._columns, self._file = title, tuple(columns), json_file
        first, *others = columns
        self._widths = [max(len(first), 40), *(max(len(column), _MIN_WIDTH) for column in others)]
        click.echo(f"\n{title} ({machine()})")
        self._print(columns)

    def row(self, *cells: str) -> None:
        """Add a row."""
        self._print(cells)
        if self._file is not None:
            # Cells are a list, not a mapping: columns may share a name.
            entry = {"table": self._title, "machine": machine(), "columns": self._columns, "cells": cells}
            with self._file.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def _print(self, cells: Sequence[str]) -> None:
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, self._widths, strict=True))
        )
        click.echo("  ".join((first, *others)).rstrip())


def machine() -> str:
    """Return the GPU and the software that a table was measured with."""
    names = ", ".join(sorted({gpu.name for gpu in visible()}))
    return f"{names}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def require_gpu() -> None:
    """Raise click.ClickException if there is no GPU to measure."""
    if not visible():
        raise click.ClickException("this machine has no NVIDIA GPU: attnfuzz backends lists the backends for it")
    if torch.version.cuda is None:
        raise click.ClickException("PyTorch is a build without CUDA: install one with it")


class Load:
    """A context that measures how busy the visible GPUs are: the share of time in which a kernel runs on them.

    The number comes from NVML (nvmlDeviceGetUtilizationRates), which averages over the last fraction of a second.
    """

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def share(self) -> float:
        """The share of the time so far, from 0 to 1."""
        return mean(self._samples) if self._samples else 0.0

    def _look(self) -> None:
        # Only machines with a GPU have pynvml.
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in visible()]
        while not self._over.wait(_LOOK_EVERY):
            self._samples += [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
        pynvml.nvmlShutdown()


def in_pairs(
    first: Callable[[], object], second: Callable[[], object], *, rounds: int, calls: int
) -> tuple[float, float, float]:
    """Return the median GPU seconds of one call of each, and the median ratio of second to first.

    A round times `calls` calls of one and then of the other between two events, launches included. The order alternates
    from round to round.
    """
    for warmup in (first, second, first, second):
        warmup()
    times = []
    for index in range(rounds):
        order = (first, second) if index % 2 else (second, first)
        taken = [_seconds(each, calls) for each in order]
        times.append(taken if index % 2 else taken[::-1])
    return median(a for a, _ in times), median(b for _, b in times), median(b / a for a, b in times)


def captured(work: Callable[[], object], calls: int) -> Callable[[], object]:
    """Return a graph of `calls` calls of `work`, to measure their time on the GPU alone."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return graph.replay


def _seconds(work: Callable[[], object], calls: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls / 1e3
