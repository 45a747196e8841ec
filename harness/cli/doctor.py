"""`attnfuzz doctor`: an examination of this machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from attnfuzz.harness.cli.answers import Examination, ExaminedRow
from attnfuzz.harness.cli.terminal import Exit, Terminal, answer, is_quiet, tell, warn
from attnfuzz.harness.doctor.bindings import all_bindings, first_on
from attnfuzz.harness.doctor.libraries import libraries
from attnfuzz.harness.doctor.machine import lacking, versions
from attnfuzz.harness.doctor.measurement import Mark, Measurement, guarded
from attnfuzz.harness.doctor.pace import pace
from attnfuzz.harness.doctor.strays import strays
from attnfuzz.harness.doctor.tools import core_dumps, sanitizer_tools
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.kernels.interface.toolchain import BUILT, toolchains
from attnfuzz.reference.device import Device

_TITLE_WIDTH = 22
_SECONDS_OF_A_CALL = 20.0
_COMPILE_SECONDS = 60.0
"""Time in which compilers of the one module must finish a file."""

_STYLES = {Mark.WORKS: "green", Mark.FAILS: "bold red", Mark.NOT_MEASURED: "yellow", Mark.INFORMATION: ""}

_ON_CPU, _ON_GPU = "trtllm_mha", "cuda_fixup"
"""Backends that pass, whose cases per second are measured: one on native kernels, one on a kernel of this project."""


class _Part(NamedTuple):
    """A part of the examination: a title for a row if it can't be measured, and its rows."""

    title: str
    rows: Callable[[], Iterator[Measurement]]


def doctor(*, called: Sequence[str]) -> Exit:
    """Examine this machine, print each row when it is measured, and return the exit code."""
    # Backends are limited to compiled modules: the others would be compiled for an hour.
    os.environ[BUILT] = "1"
    gpus = visible.visible()
    blackwell = {gpu.capability for gpu in gpus} & {Arch.BLACKWELL, Arch.BLACKWELL_ULTRA}
    named = tuple(called) or tuple(dict.fromkeys(name for arch in sorted(blackwell) for name in first_on(arch)))
    rows: list[Measurement] = []
    console = Terminal()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Wrapped lines are indented, which a table in a file needs as well.
        console.width = 120
    with Runner(progress=tell) as runner:
        parts = chain(_calls(named), _everywhere(runner), _on_gpu(runner) if gpus else ())
        for part in parts:
            for row in guarded(part.title, part.rows, warn):
                rows.append(row)
                if row.outcome is Mark.FAILS or not is_quiet():
                    console.print(_line(row))
    answer(Examination(rows=tuple(map(ExaminedRow.of, rows))))
    return Exit.FOUND if any(row.outcome is Mark.FAILS for row in rows) else Exit.CLEAN


def _calls(named: Sequence[str]) -> Iterator[_Part]:
    def rows() -> Iterator[Measurement]:
        tell(f"calling {', '.join(named)}, whose modules are compiled first")
        with Runner(named, timeout=_SECONDS_OF_A_CALL, progress=tell) as runner:
            yield from all_bindings(named, runner)

    if named:
        yield _Part("calls", rows)


def _everywhere(runner: Runner) -> Iterator[_Part]:
    yield _Part("versions", versions)
    yield _Part("backends", lacking)
    yield _Part("guard pages on the CPU", partial(strays, Device.CPU))
    yield _Part("kernels on the CPU", partial(libraries, Device.CPU, runner))
    for name, examine in shipped("attnfuzz.examinations").items():
        yield _Part(name, partial(examine, runner))
    yield _Part("cases per second", partial(pace, _ON_CPU, runner))


def _on_gpu(runner: Runner) -> Iterator[_Part]:
    yield _Part("guard pages on the GPU", partial(strays, Device.CUDA))
    yield _Part("core dumps", core_dumps)
    yield _Part("compute-sanitizer", sanitizer_tools)
    yield _Part("compiled modules", _compiled)
    yield _Part("kernels on the GPU", partial(libraries, Device.CUDA, runner))
    yield _Part("cases per second", partial(pace, _ON_GPU, runner))


def _compiled() -> Iterator[Measurement]:
    """Compile a module if there is none; only a failure has a row."""
    for toolchain in toolchains():
        toolchain.compile_few(_COMPILE_SECONDS, tell)
    yield from ()


def _line(row: Measurement) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_TITLE_WIDTH, overflow="fold")
    table.add_column(width=len(Mark.FAILS))
    table.add_column(overflow="fold")
    table.add_row(Text(row.title), Text(row.outcome, style=_STYLES[row.outcome]), Text(row.result))
    return table
