"""`attnfuzz build`: compiling GPU kernels ahead of time, so that a campaign need not wait for them."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.registry import on_device, resolve
from attnfuzz.harness.cli.flashinfer.answers import BuiltModule, Modules
from attnfuzz.harness.cli.terminal import BadInput, Terminal, answer, details, is_quiet, new_table, print_line, tell
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.kernels.cuda import nvcc, toolkit, visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import build_record, module_archive, modules
from attnfuzz.kernels.gpu.build_record import Built, Compiled, Module, capabilities
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.compilation import BuildLine
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.includes import modules_including
from attnfuzz.kernels.gpu.module_archive import Taken
from attnfuzz.kernels.gpu.quick import core_seconds, quick_set
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.native import build as native
from attnfuzz.reference.device import Device


def build(
    *,
    names: tuple[str, ...],
    jobs: int | None,
    arch: str | None,
    quick: bool,
    minutes: float | None,
    changed: tuple[Path, ...],
    archive: Path | None,
) -> None:
    """Compile the modules that GPU backends need, or take them from `archive`, and print those that can't be compiled.

    With `quick`, only the modules of the quick set; with `minutes`, those that this time allows here. With `changed`
    files, only modules that include one, which are compiled again.
    """
    if quick and minutes is not None:
        raise BadInput("--quick is --minutes 3 on 16 cores: give one of both")
    archs = arch or build_record.architectures()
    if arch and not re.fullmatch(r"\d+\.\d[a-z]?( \d+\.\d[a-z]?)*", arch):
        raise BadInput(f"--arch {arch}: give a compute capability like 9.0a, or several like '9.0a 10.0a'")
    if not archs:
        raise BadInput("no GPU is visible to compile for: name an architecture, like --arch 9.0a")
    lacking = toolkit.missing() or visible.without_packages(("flashinfer",))
    if lacking is not None:
        raise BadInput(lacking)
    backends: Sequence[Compiled] = _named(names, archs) if names else _for(archs)
    if not backends:
        raise BadInput(f"no backend runs on SM {archs}: give --arch one of {', '.join(Arch)}")
    start = time.monotonic()
    taken = Taken() if archive is None else module_archive.take(archive, archs)
    if taken.misfit:
        tell(f"{taken.misfit}: it is replaced")
    every = tuple(dict.fromkeys(module for backend in backends for module in backend.modules()))
    touching = modules_including(every, changed, archs) if changed else None
    wanted, left = _chosen(backends, every, touching, quick=quick, minutes=minutes, jobs=jobs, archs=archs)
    own = [
        nvcc.build(files, archs=capabilities(archs), progress=tell)
        for files in dict.fromkeys(files for backend in backends for files in backend.libraries)
    ]
    # All workers load the native kernels, which record where a worker faults.
    own.append(native.compiled(tell))
    known = build_record.read(archs) if archive is not None else {}
    # A changed file is in the modules that include it.
    again = {each.name for each in touching or ()}
    kept = (each.name for each in wanted if each.name in known and each.name not in again)
    there = {name: known[name] for name in kept if known[name].ready}
    built = dict(there)

    def keep() -> None:
        if archive is not None:
            module_archive.keep(archive, archs, {*taken.names, *built}, own)

    keep()
    for done in _compiled([each for each in wanted if each.name not in there], archs, jobs):
        built[done.name] = done.built
        # A build that is interrupted only loses the modules that are being compiled.
        keep()
    answer(_modules(archs, wanted, built, left))
    details().print(_table(wanted, built))
    print_line(details())
    rejected = sum(bool(one.reason) for one in built.values())
    summary = f"{count(len(built) - rejected, 'module')} for SM {archs} in {clock(time.monotonic() - start)}"
    print_line(Terminal(), summary + (f"; {rejected} can't be compiled." if rejected else "."))


_MOST_PAIRS = 6
"""Number of pairs that a line names."""


def _chosen(
    backends: Sequence[Compiled],
    every: tuple[Module, ...],
    touching: tuple[Module, ...] | None,
    *,
    quick: bool,
    minutes: float | None,
    jobs: int | None,
    archs: str,
) -> tuple[tuple[Module, ...], tuple[tuple[str, str], ...]]:
    """Return the modules to compile, and the pairs of compile-time features that they leave out.

    Those that are `touching` a changed file, with those that they are used with; or of these as many as time allows.
    """
    divisible = [each for each in backends if isinstance(each, GpuBackend)]
    if quick:
        chosen = quick_set(divisible, touching=touching)
    elif minutes is not None or touching is not None:
        budget = math.inf if minutes is None else core_seconds(60 * minutes, jobs or modules.jobs())
        chosen = quick_set(divisible, budget, known=build_record.read(archs), touching=touching)
    else:
        return every, ()
    of_them = "" if touching is None else f" that need one of {count(len(touching), 'module')} with the file"
    tell(
        f"{count(len(chosen.modules), 'module')} of {len(every)}, for {chosen.covered} of {chosen.pairs} pairs of "
        f"compile-time features{of_them}"
    )
    if chosen.left:
        some = "; ".join(f"{first} with {second}" for first, second in chosen.left[:_MOST_PAIRS])
        more = len(chosen.left) - _MOST_PAIRS
        tell(f"Left out: {some}" + (f"; and {more} more (--json FILE has all)" if more > 0 else ""))
    return chosen.modules, chosen.left


def _modules(
    archs: str, wanted: Sequence[Module], built: dict[str, Built], left: tuple[tuple[str, str], ...]
) -> Modules:
    return Modules(
        arch=archs,
        left=left,
        modules=tuple(
            BuiltModule(
                name=module.name,
                library=built[module.name].library or None,
                reason=built[module.name].reason or None,
                seconds=built[module.name].seconds,
            )
            for module in wanted
        ),
    )


def _named(names: Sequence[str], archs: str) -> tuple[Compiled, ...]:
    """Return the backends of these names, or their counterparts for `archs`. Raises BadInput, and as `on_device`."""
    found = []
    for name in names:
        counterparts: list[Backend] = [each for each in _for(archs) if each.name.partition(":")[2] == name]
        for backend in counterparts or [resolve(on_device(name, Device.CUDA))]:
            if not isinstance(backend, Compiled):
                raise BadInput(f"{name} does not declare the modules that it needs: leave it out")
            if backend.archs.isdisjoint(capabilities(archs)):
                runs_on = ", ".join(arch for arch in Arch if arch in backend.archs)
                raise BadInput(f"{name} runs on SM {runs_on}, not on {archs}: leave it out, or give another --arch")
            found.append(backend)
    return tuple(found)


def _for(archs: str) -> tuple[GpuBackend, ...]:
    """Return the backends for one of these architectures."""
    return tuple(backend for backend in GPU_BACKENDS if any(arch in backend.archs for arch in capabilities(archs)))


def _compiled(wanted: Sequence[Module], archs: str, jobs: int | None) -> Iterator[BuildLine]:
    """Compile modules, with a progress bar on standard error; without a terminal, with a line for each module."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(stderr=True, quiet=is_quiet()), transient=True) as progress:
        task = progress.add_task("compiling modules", total=len(wanted))
        compiling = modules.compile_all(wanted, archs=archs, parallel=jobs) if wanted else ()
        for number, done in enumerate(compiling, start=1):
            progress.advance(task)
            if not progress.console.is_terminal:
                tell(f"{number} of {len(wanted)}: {done.name}, {done.built.reason or clock(done.built.seconds)}")
            yield done


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
