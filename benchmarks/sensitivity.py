"""Sensitivity of the judge: the smallest errors that each tier finds, compared with fixed tolerances in use."""

import json
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil
from multiprocessing import get_context
from pathlib import Path

import click
from decode_batch import HEAD_DIM, REQUESTS, DecodeBatch, Found, run_correct_kernel
from in_process import use_one_thread
from measurement import count_option, json_option, seed_option, show
from planted_errors import IN_MANY_ROWS, IN_ONE_ROW, ErrorKind
from rival_judges import rivals

from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.dtypes import DType

LENGTHS = (16, 256, 4096, 65536, 131072)
DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)

KINDS = {ValueFamily.NORMAL: (*IN_ONE_ROW, *IN_MANY_ROWS), ValueFamily.PROBE: IN_ONE_ROW}
"""The errors planted in each family. In the probe, an error in one row is in a row whose weights are equal."""

SHARE = 0.95
"""Share of the trials in which an error has to be found."""


@dataclass(frozen=True)
class Setting:
    """The setting of one process's measurement."""

    length: int
    dtype: DType
    family: ValueFamily
    rows: int
    trials: int
    seed: int
    one_row: bool

    @property
    def kinds(self) -> tuple[ErrorKind, ...]:
        """The kinds of errors to plant."""
        return tuple(kind for kind in KINDS[self.family] if not self.one_row or kind in IN_ONE_ROW)


Smallest = dict[str, float | None]
"""The smallest size that each judge finds, by the judge's name, or None if it finds none."""


@click.command()
@click.option("--length", "lengths", type=int, multiple=True, default=LENGTHS, show_default=True, help="KV lengths.")
@count_option("--rows", 4096, f"Rows per trial, a multiple of {REQUESTS}.")
@count_option("--trials", 100, "Trials of each error.")
@count_option("--jobs", 2, "Processes.")
@click.option(
    "--one-row", is_flag=True, help="Only errors in one row: after those in many, 64 rows are judged again each time."
)
@click.option(
    "--family",
    "families",
    type=click.Choice([family.value for family in KINDS]),
    multiple=True,
    default=[family.value for family in KINDS],
    show_default=True,
    help="Families of values.",
)
@seed_option
@json_option
def main(
    *,
    lengths: tuple[int, ...],
    rows: int,
    trials: int,
    jobs: int,
    one_row: bool,
    families: tuple[str, ...],
    seed: int,
    json_file: Path | None,
) -> None:
    """Plant errors in outputs of correct kernels, and look for the smallest that is found in 95% of the trials.

    An error is planted in closed form: the exact answer with the error, plus the kernel's own error before rounding,
    rounded to the output's dtype. All judges see the same outputs.
    """
    settings = [
        Setting(length, dtype, family, rows, trials, seed, one_row)
        for length in sorted(lengths, reverse=True)
        for family in map(ValueFamily, families)
        for dtype in DTYPES
    ]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=use_one_thread) as pool:
        found = {}
        for setting, sizes in zip(settings, pool.map(_measured, settings), strict=True):
            click.echo(f"{setting.length} keys, {setting.dtype}, {setting.family}: done", err=True)
            found[setting] = sizes
    for family in map(ValueFamily, families):
        for kind in KINDS[family]:
            _show(kind.name, {setting: found[setting] for setting in settings if setting.family is family})
    if json_file is not None:
        json_file.write_text(json.dumps(list(_as_json(found)), indent=2))


def _measured(setting: Setting) -> dict[str, Smallest]:
    """Return the smallest size found of each kind of error."""
    batch = run_correct_kernel(setting.length, setting.dtype, setting.family, setting.rows, setting.seed)
    judges = {**batch.judges(), **rivals(batch)}
    return {
        kind.name: {name: smallest(kind, batch, found, setting.trials) for name, found in judges.items()}
        for kind in setting.kinds
        if kind.sizes(setting.length)
    }


def smallest(kind: ErrorKind, batch: DecodeBatch, found: Found, trials: int) -> float | None:
    """Return the smallest size that is found often enough, or None. Larger errors are easier to find."""
    sizes = kind.sizes(batch.length)
    different = min(trials, kind.different)

    @cache
    def often(index: int) -> bool:
        may_miss = different - ceil(SHARE * different)
        for trial in range(different):
            may_miss -= not found(*kind.plant(batch, sizes[index], trial))
            if may_miss < 0:
                return False
        return True

    too_small, index = -1, 0
    while not often(index):
        if index == len(sizes) - 1:
            return None
        too_small, index = index, min(2 * index + 1, len(sizes) - 1)
    return sizes[bisect_left(range(len(sizes)), True, too_small + 1, index, key=often)]


def _show(kind: str, found: dict[Setting, dict[str, Smallest]]) -> None:
    """Print one table, with a row for each length and dtype and a column for each judge."""
    rows = {f"{setting.length} {setting.dtype}": sizes[kind] for setting, sizes in found.items() if kind in sizes}
    if not rows:
        return
    some = next(iter(found))
    names = sorted({name for sizes in rows.values() for name in sizes}, key=lambda name: (len(name) > 3, name))
    title = (
        f"{kind}, {some.family} values: smallest found in {SHARE:.0%} of {some.trials} trials\n"
        f"{some.rows} rows: {REQUESTS} requests x {some.rows // REQUESTS} query heads, head dim {HEAD_DIM}, no mask"
    )
    cells = [(name, *(_cell(sizes, judge) for judge in names)) for name, sizes in rows.items()]
    show(title, ("keys, dtype", *names), cells)


def _cell(sizes: Smallest, judge: str) -> str:
    if judge not in sizes:
        return "-"
    size = sizes[judge]
    return "none" if size is None else f"{size:g}"


def _as_json(found: dict[Setting, dict[str, Smallest]]) -> Iterator[dict[str, object]]:
    for setting, kinds in found.items():
        yield {**asdict(setting), "smallest": kinds}


if __name__ == "__main__":
    main()
