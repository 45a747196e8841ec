"""`attnfuzz build`: compiles the kernels that run on GPUs, before anybody waits for them."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.registry import on_device, resolve
from attnfuzz.harness.cli.given import counted
from attnfuzz.harness.cli.terminal import BadInput, Terminal, new_table, tell
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.gpu import build_record, modules, nvcc, toolkit, visible
from attnfuzz.kernels.gpu.build_record import Built, Module
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.visible import Arch
from attnfuzz.reference.device import Device


@click.command()
@click.option(
    "--backend",
    "names",
    multiple=True,
    metavar="NAME",
    help="What will be tested; may be given several times.  [default: all that run on the GPU]",
)
@click.option("--jobs", type=counted(most=1024), help="Files to compile at a time.  [default: $MAX_JOBS, or cores]")
@click.option("--arch", metavar="9.0a", help="What to compile for, also without a GPU.  [default: the visible GPUs]")
def build(*, names: tuple[str, ...], jobs: int | None, arch: str | None) -> None:
    """Compile what GPU backends need, in parallel, and say what can't be compiled.

    What is there already costs little, and what could not be compiled is tried again. Exits with 0, whatever was
    rejected: cases that need it count as unsupported. 2 if nothing can be compiled here.
    """
    archs = arch or build_record.architectures()
    if arch and not re.fullmatch(r"\d+\.\d[a-z]?( \d+\.\d[a-z]?)*", arch):
        raise BadInput(f"--arch {arch}: give a compute capability like 9.0a, or several like '9.0a 10.0a'")
    if not archs:
        raise BadInput("no GPU is visible to compile for: name an architecture, like --arch 9.0a")
    lacking = toolkit.missing() or visible.without_packages(("flashinfer",))
    if lacking is not None:
        raise BadInput(lacking)
    backends = _named(names, archs) if names else _for(archs)
    if not backends:
        raise BadInput(f"no backend runs on SM {archs}: give --arch one of {', '.join(Arch)}")
    for files in dict.fromkeys(files for backend in backends for files in backend.libraries):
        nvcc.build(files, archs=_numbers(archs), progress=tell)
    wanted = tuple(dict.fromkeys(module for backend in backends for module in backend.modules()))
    start = time.monotonic()
    built = _compiled(wanted, archs, jobs)
    console = Terminal()
    console.print(_table(wanted, built))
    rejected = sum(bool(one.reason) for one in built.values())
    summary = f"\n{count(len(built) - rejected, 'module')} for SM {archs} in {clock(time.monotonic() - start)}"
    console.print(summary + (f"; {rejected} can't be compiled." if rejected else "."))


def _named(names: Sequence[str], archs: str) -> tuple[GpuBackend, ...]:
    """The backends of these names, or their counterparts for `archs`. Raises BadInput, and as `on_device`."""
    found = []
    for name in names:
        counterparts: list[Backend] = [each for each in _for(archs) if each.name.partition(":")[2] == name]
        for backend in counterparts or [resolve(on_device(name, Device.CUDA))]:
            if not isinstance(backend, GpuBackend):
                raise BadInput(f"{name} says nothing of modules that it needs: leave it out")
            if backend.archs.isdisjoint(_numbers(archs)):
                runs_on = ", ".join(arch for arch in Arch if arch in backend.archs)
                raise BadInput(f"{name} runs on SM {runs_on}, not on {archs}: leave it out, or give another --arch")
            found.append(backend)
    return tuple(found)


def _for(archs: str) -> tuple[GpuBackend, ...]:
    """Those for one of these architectures."""
    return tuple(backend for backend in GPU_BACKENDS if any(arch in backend.archs for arch in _numbers(archs)))


def _numbers(archs: str) -> list[str]:
    """The compute capabilities of what FlashInfer calls 9.0a and the like."""
    return [re.sub("[a-z]", "", arch) for arch in archs.split()]


def _compiled(wanted: Sequence[Module], archs: str, jobs: int | None) -> dict[str, Built]:
    """Compile, with a bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    built: dict[str, Built] = {}
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task("compiling modules", total=len(wanted))
        for told in modules.compile_all(wanted, archs=archs, parallel=jobs):
            built[told.name] = told.built
            progress.advance(task)
    return built


def _table(wanted: Sequence[Module], built: dict[str, Built]) -> Table:
    table = new_table("module", "took", "size", numbers=("took", "size"))
    for module in wanted:
        one = built[module.name]
        if one.reason:
            table.add_row(Text.assemble(f"{module.name}\n", (one.reason, "red")))
            continue
        size = f"{Path(one.library).stat().st_size / (1 << 20):.1f} MiB"
        table.add_row(Text(module.name), f"{one.seconds:.0f} s" if one.seconds else "there", size)
    return table
