"""Measure how many regressions, planted in FlashInfer's CUDA sources, a campaign of a minute finds.

    python benchmarks/cuda_regressions.py --compile --run --work build/cuda_regressions

Each file in benchmarks/cuda_regressions is a mistake (benchmarks/cuda_plants.py). The modules that it changes are
compiled, and `attnfuzz fuzz --backend NAME --time 60s` runs with the official ledger on geometries of these modules. It
is stopped at the first finding that passes when it is replayed on the unchanged modules (benchmarks/cuda_campaigns.py).
Then the unchanged modules are fuzzed for as long.

Compiled libraries stay in WORK/libraries, and results in WORK/results.json: both are taken up again by the next call.
`--compile` needs no GPU. With RESULTS in the environment, the tables are also written into that page of docs/results.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

# FlashInfer would create a CUDA context, after which no process may fork.
_VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", "9.0")

import click  # noqa: E402
from cuda_campaigns import BadResults, Campaigns, Pretended, Result, Results  # noqa: E402
from cuda_plants import (  # noqa: E402
    BadPlant,
    Linked,
    Plant,
    compile_all,
    linked,
    modules_for,
    package,
    read_plants,
    spec_of,
)
from results import record  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from attnfuzz.harness.backends.registry import resolve  # noqa: E402
from attnfuzz.kernels.building.library_cache import BuildFailed  # noqa: E402
from attnfuzz.kernels.cuda import nvcc  # noqa: E402
from attnfuzz.kernels.gpu import build_record  # noqa: E402
from attnfuzz.kernels.gpu.build_record import Built, Module  # noqa: E402
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend  # noqa: E402
from attnfuzz.kernels.native import build as native  # noqa: E402

ROOT = Path(__file__).parents[1]
_NO_GPU = "no GPU"
_COLUMNS = (
    "plant",
    "area",
    "mistake",
    "file",
    "found",
    "after",
    "cases",
    "deaths",
    "also unchanged",
    "undecided",
    "first finding that is the plant's",
)


def furnished(work: Path, name: str, modules: Iterable[Module], libraries: Mapping[str, Path], own: Path) -> Path:
    """Make a folder with the caches that a campaign sees: these libraries alone, by the names of their modules."""
    home = work / "campaigns" / re.sub(r"\W", "_", name)
    shutil.rmtree(home, ignore_errors=True)
    base, cache = home / "fi", home / "cache"
    cache.mkdir(parents=True)
    for path in own.glob("*.so"):
        (cache / path.name).symlink_to(path)
    found = {}
    here = Path(build_record.workspace_base())
    for module in modules:
        place = base / spec_of(module).get_library_path().relative_to(here)
        place.parent.mkdir(parents=True)
        place.symlink_to(libraries[module.name])
        found[module.name] = Built(library=str(place), base=str(base))
    before = os.environ["ATTNFUZZ_CACHE"]
    os.environ["ATTNFUZZ_CACHE"] = str(cache)
    build_record.add(os.environ["FLASHINFER_CUDA_ARCH_LIST"], found)
    os.environ["ATTNFUZZ_CACHE"] = before
    return home


def prepared(plants: Sequence[Plant], work: Path, complain: Callable[[BadPlant], None]) -> dict[str, list[Linked]]:
    """Prepare the libraries of each plant, and of the unchanged modules of each backend ("unchanged BACKEND")."""
    found: dict[str, list[Linked]] = {}
    for plant in plants:
        try:
            found[plant.name] = [linked(module, plant, work) for module in modules_for(plant)]
        except BadPlant as error:
            complain(error)
            continue
        unchanged = found.setdefault(_control(plant.backend), [])
        known = {each.module for each in unchanged}
        unchanged += [linked(module, None, work) for module in modules_for(plant) if module.name not in known]
    return found


def _control(backend: str) -> str:
    return f"unchanged {backend}"


def _own_kernels(plants: Iterable[Plant]) -> None:
    """Compile the kernels of this project that the campaigns need: each would compile them in its own cache."""
    native.compiled(print)
    backends = [resolve(name) for name in dict.fromkeys(plant.backend for plant in plants)]
    for files in dict.fromkeys(files for each in backends if isinstance(each, GpuBackend) for files in each.libraries):
        nvcc.build(files)


@click.command(help=__doc__)
@click.option("--compile", "compiling", is_flag=True, help="Compile the missing libraries.")
@click.option("--run", "running", is_flag=True, help="Run the campaigns that have no result yet.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "cuda_regressions")
@click.option("--plant", "names", multiple=True, help="A plant; may be given several times.  [default: all]")
@click.option("--seconds", type=click.FloatRange(min=5), default=60.0, show_default=True, help="Time of a campaign.")
@click.option("--jobs", type=click.IntRange(min=1), default=3, show_default=True, help="Jobs of a campaign.")
@click.option("--at-once", type=click.IntRange(min=1), default=5, show_default=True, help="Campaigns at a time.")
@click.option("--compilers", type=click.IntRange(min=1), default=os.cpu_count(), help="Files to compile at a time.")
@click.option(
    "--budget", type=click.FloatRange(min=1), default=3600.0, help="Seconds after which nothing new is begun."
)
@click.option("--controls/--no-controls", default=True, help="Fuzz the unchanged modules, too.")
@click.option(
    "--pretend",
    "pretended",
    nargs=2,
    metavar="PLANTED UNCHANGED",
    help="Fuzz the backend PLANTED for each plant, and replay its findings on UNCHANGED, to try this script on a CPU.",
)
def main(
    compiling: bool,
    running: bool,
    work: Path,
    names: tuple[str, ...],
    seconds: float,
    jobs: int,
    at_once: int,
    compilers: int,
    budget: float,
    controls: bool,
    pretended: tuple[str, str] | None,
) -> None:
    """Compile the plants, run their campaigns, and print the tables."""
    end = time.monotonic() + budget
    work = work.resolve()
    os.environ["ATTNFUZZ_CACHE"] = str(work / "own")
    try:
        package()
        plants = read_plants(names)
    except BadPlant as error:
        raise click.ClickException(str(error)) from error
    refused: list[str] = []

    def complain(error: BadPlant) -> None:
        refused.append(str(error))
        print(error, flush=True)

    try:
        campaigns = Campaigns(
            work,
            seconds=seconds,
            jobs=jobs,
            pretended=Pretended(*pretended) if pretended else None,
            gpus=_VISIBLE,
            time_left=lambda: end - time.monotonic(),
        )
    except BadResults as error:
        raise click.ClickException(str(error)) from error
    if compiling or running:
        libraries = prepared(plants, work, complain)
    if compiling:
        every = {each.library: each for several in libraries.values() for each in several}
        start = time.monotonic()
        for failed in compile_all(every.values(), compilers, lambda: end - time.monotonic(), print):
            complain(failed)
        try:
            _own_kernels(plants)
        except BuildFailed as error:
            raise click.ClickException(str(error)) from error
        print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
    if running:
        campaigns.results.machine = _machine()
        if campaigns.results.machine == _NO_GPU and not pretended:
            raise click.ClickException("--run needs an NVIDIA GPU; with --pretend, it can be tried on a CPU")
        todo = _todo(plants, libraries, campaigns, work, controls=controls, pretend=bool(pretended))
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda one: one(), todo))
    _print_tables(plants, campaigns.results, refused)


def _todo(
    plants: Sequence[Plant],
    libraries: Mapping[str, Sequence[Linked]],
    campaigns: Campaigns,
    work: Path,
    *,
    controls: bool,
    pretend: bool,
) -> Iterator[Callable[[], None]]:
    """Yield the campaigns without a result whose libraries are there: those of plants, then those of no plant."""
    replayed_in: dict[str, Path] = {}
    wanted = [(plant.name, plant.name, plant) for plant in plants]
    if controls:
        wanted += [("", _control(name), plant) for name, plant in {plant.backend: plant for plant in plants}.items()]
    for name, key, plant in wanted:
        made, backend = libraries.get(key, ()), plant.backend
        if campaigns.done(name, backend) or not made:
            continue
        unchanged = libraries[_control(backend)]
        if not pretend and (missing := [each.module for each in (*made, *unchanged) if not each.library.exists()]):
            print(f"{key} is not run: {missing[0]} is not compiled", flush=True)
            continue
        modules = {module.name: module for other in plants if other.backend == backend for module in modules_for(other)}

        def home(folder: str, linked_here: Sequence[Linked], modules: Mapping[str, Module] = modules) -> Path:
            mine = [modules[each.module] for each in linked_here]
            return furnished(work, folder, mine, {each.module: each.library for each in linked_here}, work / "own")

        if name and backend not in replayed_in:
            replayed_in[backend] = home(f"replays {backend}", unchanged)
        yield partial(campaigns.run, name, backend, home(key, made), replayed_in[backend] if name else None)


def _machine() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    except OSError:
        gpus = []
    name, _, driver = (gpus or [_NO_GPU])[0].partition(", ")
    return f"{name}, driver {driver}, {len(os.sched_getaffinity(0))} cores" if driver else name


def _print_tables(plants: Sequence[Plant], results: Results, refused: Sequence[str]) -> None:
    by_plant = {each.plant: each for each in results.all if each.plant}
    rows = [_row(plant, by_plant.get(plant.name)) for plant in plants]
    rows.append(_total([by_plant[each.name] for each in plants if each.name in by_plant and not each.equivalent]))
    _show("Regressions planted in CUDA sources", _COLUMNS, rows, results.machine)
    unchanged = [each for each in results.all if not each.plant]
    more = [
        (each.backend, str(each.cases), str(each.deaths), each.error or "; ".join(each.titles) or "none")
        for each in unchanged
    ]
    if more:
        _show(
            "The same kernels unchanged",
            ("backend", "cases", "deaths", "failures beside the ledger"),
            more,
            results.machine,
        )
    for line in refused:
        print(line)


def _row(plant: Plant, result: Result | None) -> Sequence[str]:
    known = (plant.name, plant.area, plant.kind, Path(plant.source).name)
    if result is None:
        return (*known, "not run", "", "", "", "", "", plant.equivalent)
    found = result.seconds is not None
    text = result.error or (result.titles[0] if result.titles else "")
    if plant.equivalent:
        text = f"equivalent: {plant.equivalent} {text}".strip()
    return (*known, "yes" if found else "no", _seconds(result.seconds), *_counts([result]), text)


def _total(ran: Sequence[Result]) -> Sequence[str]:
    times = [each.seconds for each in ran if each.seconds is not None]
    after = f"{_seconds(median(times))} (median)" if times else ""
    found = f"{len(times)} of {len(ran)}"
    return ("all that are not equivalent", "", "", "", found, after, *_counts(ran), "")


def _seconds(time: float | None) -> str:
    return "" if time is None else f"{time:.0f} s"


def _counts(ran: Sequence[Result]) -> Sequence[str]:
    """Return the sums of the columns that count."""
    return [
        str(sum(numbers))
        for numbers in (
            [each.cases for each in ran],
            [each.deaths for each in ran],
            [each.unchanged for each in ran],
            [each.undecided for each in ran],
        )
    ]


def _show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], machine: str) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=200, highlight=False, markup=False).print(table)
    if page := os.environ.get("RESULTS"):
        record(Path(page), title, columns, rows, machine)


if __name__ == "__main__":
    main()
