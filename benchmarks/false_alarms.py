"""Rate of false alarms: how often correct kernels fail, over many rows of every dtype and value family."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
from in_process import use_one_thread, verdict_in_process
from measurement import backends_option, count_option, json_option, seed_option, show
from widened import widened

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.confirm import comes_back
from attnfuzz.harness.search.examples import derive_seed, run_examples
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.numbers import families
from attnfuzz.strategies.cases import cases

DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)

AS_DRAWN = 20
"""One case in this many is used as drawn. The others are widened, half of them on the same KV heads."""


@dataclass(frozen=True)
class Cell:
    """A unit of judging: `rows` rows of one backend, query dtype and value family."""

    backend: str
    dtype: DType
    family: ValueFamily
    rows: int
    cases: int
    seed: int


@dataclass
class Tally:
    """The results of judging. `suspects` has the cases that failed, each with its first failure."""

    rows: int = 0
    fp8_rows: int = 0
    cases: int = 0
    margins: dict[str, float] = field(default_factory=dict)
    suspects: list[tuple[Case, Observation]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add the counts of `other` to these."""
        self.rows += other.rows
        self.fp8_rows += other.fp8_rows
        self.cases += other.cases
        self.suspects += other.suspects
        for tier, margin in other.margins.items():
            self.margins[tier] = max(margin, self.margins.get(tier, 0.0))


@click.command()
@backends_option()
@count_option("--rows", 1_000_000, "Rows to judge of each query dtype and value family, over all backends.")
@count_option("--cases", 100, "Cases that are drawn of each backend and query dtype, for all their rows.")
@count_option("--jobs", 2, "Processes.")
@seed_option
@json_option
def main(*, backends: tuple[str, ...], rows: int, cases: int, jobs: int, seed: int, json_file: Path | None) -> None:
    """Judge outputs of correct kernels, in-process and on plain memory, and count failures.

    The cases are drawn by the general strategies, with their windows, sinks, scales, views, padding, graphs and merged
    chunks. They are then given many more heads, the dtype and family of the cell, and fresh seeds. A failing case runs
    again in a fresh worker, and counts as a false alarm if it fails there too.
    """
    cells = [
        Cell(name, dtype, family, -(-rows // len(backends)), cases, seed)
        for name in backends
        for dtype in DTYPES
        for family in families(resolve(name).capability)
    ]
    tallies = _soak(cells, jobs)
    alarms = _confirmed(tallies)
    by_cell: dict[tuple[DType, ValueFamily], Tally] = {}
    by_backend: dict[str, Tally] = {}
    for cell, tally in zip(cells, tallies, strict=True):
        by_cell.setdefault((cell.dtype, cell.family), Tally()).add(tally)
        by_backend.setdefault(cell.backend, Tally()).add(tally)
    named = {f"{dtype} {family}": tally for (dtype, family), tally in by_cell.items()}
    _show("False alarms, by query dtype and value family", named, alarms)
    _show("False alarms, by backend", by_backend, alarms)
    if json_file is not None:
        groups = {"dtype and family": named, "backend": by_backend}
        json_file.write_text(json.dumps({name: _as_json(group, alarms) for name, group in groups.items()}, indent=2))


def _soak(cells: Sequence[Cell], jobs: int) -> list[Tally]:
    """Judge all cells in `jobs` processes, and report each cell when it is done."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=use_one_thread) as pool:
        tallies = []
        for cell, tally in zip(cells, pool.map(_judged, cells), strict=True):
            click.echo(f"{cell.backend} {cell.dtype} {cell.family}: {tally.rows:,} rows", err=True)
            tallies.append(tally)
    return tallies


def _judged(cell: Cell) -> Tally:
    """Judge the rows of one cell in this process."""
    tally = Tally()
    for case in _cases(cell):
        verdict = verdict_in_process(case)
        tally.add(
            Tally(
                rows=verdict.rows,
                fp8_rows=verdict.rows if case.geometry.kv_dtype is DType.FLOAT8_E4M3 else 0,
                cases=1,
                margins=verdict.margins,
                suspects=[(case, failure) for failure in verdict.failures[:1]],
            )
        )
        if tally.rows >= cell.rows:
            break
    return tally


def _cases(cell: Cell) -> Iterator[Case]:
    """Yield cases without end: the drawn ones in turn, with new seeds."""
    pool = _drawn(cell.backend, cell.dtype, cell.cases, cell.seed)
    for number in count():
        case = msgspec.structs.replace(
            pool[number % len(pool)],
            values=cell.family,
            seed=derive_seed(cell.seed, cell.backend, cell.dtype, cell.family, number) >> 2,
        )
        yield widened(case, alike=number % 2 == 1) if number % AS_DRAWN else case


@cache
def _drawn(backend: str, dtype: DType, cases_wanted: int, seed: int) -> list[Case]:
    # Plain memory can't leave holes without memory after its pages.
    can = msgspec.structs.replace(resolve(backend).capability, dtypes=(dtype,), pool_holes=False)
    drawn: list[Case] = []
    run_examples(cases(can, backend), drawn.append, examples=cases_wanted, seed_of=derive_seed(seed, backend, dtype))
    return drawn


def _confirmed(tallies: Sequence[Tally]) -> list[Case]:
    """Return the suspects that fail in a fresh worker as well. Prints each suspect with its case."""
    suspects = list(chain.from_iterable(tally.suspects for tally in tallies))
    if not suspects:
        return []
    confirmed = []
    with Runner() as runner:
        for case, failure in suspects:
            again = comes_back(runner, case, failure)
            click.echo(f"{failure.kind} {'again' if again else 'not again'} in a fresh worker: {failure.message}")
            click.echo(case_file.encode(case).decode())
            if again:
                confirmed.append(case)
    return confirmed


def _show(title: str, tallies: dict[str, Tally], alarms: Sequence[Case]) -> None:
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    tiers = sorted(total.margins)
    columns = ("", "rows", "fp8 KV", "alarms of\nsuspects", "rate", *tiers)
    rows = [(name, *_cells(tally, alarms, tiers)) for name, tally in {**tallies, "all": total}.items()]
    show(f"{title}: rows judged, confirmed alarms, and the worst margin of each tier", columns, rows)


def _cells(tally: Tally, alarms: Sequence[Case], tiers: Sequence[str]) -> list[str]:
    found = _alarms(tally, alarms)
    # If none of N rows fails, the rate is below 3 / N with a confidence of 95%.
    rate = f"{found / tally.rows:.1e}" if found else f"< {3 / max(tally.rows, 1):.1e}"
    margins = (f"{tally.margins[tier]:.2f}" if tier in tally.margins else "-" for tier in tiers)
    return [f"{tally.rows:,}", f"{tally.fp8_rows:,}", f"{found} of {len(tally.suspects)}", rate, *margins]


def _alarms(tally: Tally, alarms: Sequence[Case]) -> int:
    return sum(case in alarms for case, _ in tally.suspects)


def _as_json(tallies: dict[str, Tally], alarms: Sequence[Case]) -> dict[str, object]:
    return {
        name: {
            "rows": tally.rows,
            "fp8_rows": tally.fp8_rows,
            "cases": tally.cases,
            "suspects": len(tally.suspects),
            "alarms": _alarms(tally, alarms),
            "margins": tally.margins,
        }
        for name, tally in tallies.items()
    }


if __name__ == "__main__":
    main()
