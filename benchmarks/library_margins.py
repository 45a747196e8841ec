"""Margins of libraries' kernels under theoretical noise models: how tight or slack the models are."""

import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import click
import msgspec
from in_process import use_one_thread
from measurement import count_option, seed_option, show

from attnfuzz.harness.backends.registry import with_libraries
from attnfuzz.harness.calibrate.margins import largest_margins
from attnfuzz.harness.calibrate.sample import CannotCalibrate, draw_samples, rows_of
from attnfuzz.kernels.libraries.catalogue import LIBRARY_BACKENDS
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.reference.dtypes import DType

FEATURES = ("unequal_head_dims", "windows", "sinks", "soft_cap", "kv_shorter_than_q", "empty_kv")
"""The features that may be left out, because libraries have known findings there."""


class Margins(NamedTuple):
    """The largest margin of each tier over `rows` of up to `longest` keys, and the failing outputs; or a `reason`."""

    rows: int = 0
    longest: int = 0
    largest: tuple[tuple[str, float], ...] = ()
    failing: int = 0
    reason: str = ""


@click.command()
@click.option("--backend", "names", multiple=True, default=("libraries",), show_default=True, help="Backends.")
@click.option("--without", multiple=True, type=click.Choice(FEATURES), help="Features to leave out.")
@count_option("--rows", 5000, "Rows of drawn cases, before those of long ones.")
@count_option("--seconds", 60, "CPU seconds for a dtype of a backend.")
@seed_option
def main(*, names: tuple[str, ...], without: tuple[str, ...], rows: int, seconds: int, seed: int) -> None:
    """Print the largest margin of each tier for each backend and dtype, from drawn cases and then from long ones.

    If a library ends its process, its line says so.
    """
    chosen = with_libraries(names)
    backends = [each for each in LIBRARY_BACKENDS if isinstance(each, LibraryBackend) and each.name in chosen]
    table = []
    for backend in backends:
        for dtype in backend.capability.dtypes:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=use_one_thread) as pool:
                measured = partial(_measured, backend.name, dtype, without, rows, seconds, seed)
                try:
                    found = pool.submit(measured).result()
                except BrokenProcessPool:
                    found = Margins(reason="the process died")
            table.append(_line(backend.name, dtype, found))
            click.echo(" ".join(table[-1]), err=True)
    show(
        f"largest margins in {seconds} s of CPU time",
        ("backend", "dtype", "rows", "keys", "failing", "T1", "T2", "T3", "T4", "T5"),
        table,
    )


def _line(name: str, dtype: DType, found: Margins) -> tuple[str, ...]:
    if found.reason:
        return name, dtype.value, "-", "-", found.reason, *5 * "-"
    largest = dict(found.largest)
    margins = (f"{largest[tier]:.2f}" if tier in largest else "-" for tier in ("T1", "T2", "T3", "T4", "T5"))
    return name, dtype.value, f"{found.rows:,}", f"{found.longest:,}", str(found.failing), *margins


def _measured(name: str, dtype: DType, without: tuple[str, ...], rows: int, seconds: int, seed: int) -> Margins:
    """Judge the outputs of one backend until the time is up."""
    backend = next(each for each in LIBRARY_BACKENDS if each.name == name)
    assert isinstance(backend, LibraryBackend)
    capability = msgspec.structs.replace(backend.capability, **dict.fromkeys(without, False))
    backend = replace(backend, capability=capability)
    noise, until = backend.theory(dtype), time.process_time() + seconds
    largest: dict[str, float] = defaultdict(float)
    judged = failing = 0
    samples = []
    try:
        for samples in draw_samples(name, backend, dtype, noise, rows=rows, seed=seed):
            for sample in samples[judged:]:
                margins = dict(largest_margins(sample.under(noise)))
                failing += max(margins.values()) > 1
                largest |= {tier: max(margin, largest[tier]) for tier, margin in margins.items()}
            judged = len(samples)
            if time.process_time() > until:
                break
    except CannotCalibrate as reason:
        return Margins(reason=str(reason))
    return Margins(rows_of(samples), max(each.longest for each in samples), tuple(largest.items()), failing)


if __name__ == "__main__":
    main()
