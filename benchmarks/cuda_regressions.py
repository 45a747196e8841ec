"""Measure how many regressions, planted in FlashInfer's CUDA sources, a campaign of a minute finds.

    python benchmarks/cuda_regressions.py --compile --run --work build/cuda_regressions

Each file in benchmarks/cuda_regressions is a mistake (benchmarks/cuda_plants.py). The modules that it changes are
compiled, and `attnfuzz fuzz --backend NAME --time 60s` runs with the official ledger on geometries of these modules. It
is stopped when the first failure is filed that is not in the ledger. Then the unchanged modules are fuzzed for as long.

Compiled libraries stay in WORK/libraries, and results in WORK/results.json: both are taken up again by the next call.
`--compile` needs no GPU. With RESULTS in the environment, the tables are also written into that page of docs/results.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
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
import msgspec  # noqa: E402
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
_POLL = 0.25
_AFTER_FINDING = 2.0
"""Seconds that a campaign goes on after its first finding, for others that are about to be filed."""
_TO_END = 15.0
"""Seconds that a campaign may take to end after an interrupt."""
_TO_START = 90.0
"""Seconds beyond its time that a campaign may take in all."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the campaign on a plant, or on unchanged modules if `plant` is "".

    `seconds` is the time from the campaign's start to its first finding, None if it has none. `titles` are its causes.
    """

    plant: str
    backend: str
    seconds: float | None
    cases: int
    deaths: int
    titles: tuple[str, ...]
    error: str = ""


class Results(msgspec.Struct, kw_only=True):
    """All results, and the machine that they come from."""

    machine: str = ""
    all: list[Result] = []


class _Finding(msgspec.Struct, kw_only=True):
    """The fields of an event that a watcher needs."""

    event: str
    at: float
    known: str | None = None


class Campaigns:
    """Runs campaigns in the folder `work`, a few at a time, and keeps their results."""

    def __init__(self, work: Path, *, seconds: float, jobs: int, pretend: str, time_left: Callable[[], float]) -> None:
        self._work, self._seconds, self._jobs, self._pretend = work, seconds, jobs, pretend
        self._time_left, self._lock = time_left, threading.Lock()
        self._file = work / "results.json"
        self.results = msgspec.json.decode(self._file.read_bytes(), type=Results) if self._file.exists() else Results()

    def done(self, plant: str, backend: str) -> bool:
        """Return whether this campaign has a result, other than that it could not run."""
        return any((each.plant, each.backend) == (plant, backend) and not each.error for each in self.results.all)

    def run(self, plant: str, backend: str, home: Path) -> None:
        """Run one campaign in the home that `furnished` has made, and keep its result."""
        if self._time_left() < self._seconds / 2:
            return
        result = self._campaign(plant, backend, home)
        with self._lock:
            others = [each for each in self.results.all if (each.plant, each.backend) != (plant, backend)]
            self.results.all = [*others, result]
            self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self.results)))
            found = f"{result.seconds:.0f} s: {result.titles[0]}" if result.seconds is not None else "nothing"
            print(f"{plant or 'unchanged'} ({backend}): {result.error or found}", flush=True)

    def _campaign(self, plant: str, backend: str, home: Path) -> Result:
        folder = home / "home"
        shutil.rmtree(folder, ignore_errors=True)
        time_for_it = min(self._seconds, self._time_left())
        command = [sys.executable, "-m", "attnfuzz", "fuzz", "--backend", self._pretend or backend]
        command += ["--time", f"{time_for_it:.0f}s", "--jobs", f"{self._jobs}", "--home", str(folder), "--quiet"]
        command += ["--json", str(home / "answer.json"), "--ledger", str(ROOT / "attnfuzz-ledger.toml")]
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        if _VISIBLE is not None:
            environment["CUDA_VISIBLE_DEVICES"] = _VISIBLE
        environment |= {"ATTNFUZZ_CACHE": str(home / "cache"), "FLASHINFER_WORKSPACE_BASE": str(home / "fi")}
        environment |= {"ATTNFUZZ_BUILT": "1"}
        (home / "answer.json").unlink(missing_ok=True)
        with (home / "output.txt").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)
            seconds = _watch(process, folder, deadline=time.monotonic() + time_for_it + _TO_START)
        return _result(plant, backend, home, seconds)


def _watch(process: subprocess.Popen[bytes], folder: Path, deadline: float) -> float | None:
    """Wait for a campaign, and interrupt it after its first finding. Returns the time of that finding."""
    first, interrupted = None, 0.0
    while process.poll() is None:
        time.sleep(_POLL)
        now = time.monotonic()
        if first is None:
            first = next((each.at for each in _findings(folder) if each.known is None), None)
            seen = now
        due = first is not None and now > seen + _AFTER_FINDING
        if (due or now > deadline) and not interrupted:
            process.send_signal(signal.SIGINT)
            interrupted = now
        if interrupted and now > interrupted + _TO_END:
            process.kill()
    return first if first is not None else next((each.at for each in _findings(folder) if each.known is None), None)


def _findings(folder: Path) -> Iterator[_Finding]:
    """Yield the findings in the log of the campaign in `folder`."""
    for log in folder.glob("campaigns/*/events.ndjson"):
        for line in log.read_bytes().splitlines():
            if b'"FindingFiled"' in line:
                with contextlib.suppress(msgspec.DecodeError):
                    event = msgspec.json.decode(line, type=_Finding)
                    if event.event == "FindingFiled":
                        yield event


def _result(plant: str, backend: str, home: Path, seconds: float | None) -> Result:
    try:
        answer = msgspec.json.decode((home / "answer.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        lines = (home / "output.txt").read_text(errors="replace").strip().splitlines() or ["no output"]
        return Result(
            plant=plant, backend=backend, seconds=seconds, cases=0, deaths=0, titles=(), error=f"no answer: {lines[-1]}"
        )
    titles = tuple(cause["title"] for cause in answer["causes"] if cause["known"] is None)
    unsaid = ("filed, not confirmed",) if seconds is not None and not titles else ()
    return Result(
        plant=plant,
        backend=backend,
        seconds=seconds,
        cases=answer["cases"],
        deaths=answer["deaths"],
        titles=titles or unsaid,
        error=answer["failed"] or "",
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
@click.option("--pretend", default="", metavar="NAME", help="Fuzz this backend instead, to try this script on a CPU.")
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
    pretend: str,
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

    campaigns = Campaigns(work, seconds=seconds, jobs=jobs, pretend=pretend, time_left=lambda: end - time.monotonic())
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
        if campaigns.results.machine == _NO_GPU and not pretend:
            raise click.ClickException("--run needs an NVIDIA GPU; with --pretend NAME, it can be tried on a CPU")
        todo = _todo(plants, libraries, campaigns, work, controls=controls, pretend=bool(pretend))
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
    wanted = [(plant.name, plant.name, plant) for plant in plants]
    if controls:
        wanted += [("", _control(name), plant) for name, plant in {plant.backend: plant for plant in plants}.items()]
    for name, key, plant in wanted:
        made = libraries.get(key, ())
        if campaigns.done(name, plant.backend) or not made:
            continue
        if not pretend and (missing := [each.module for each in made if not each.library.exists()]):
            print(f"{key} is not run: {missing[0]} is not compiled", flush=True)
            continue
        modules = {
            module.name: module for other in plants if other.backend == plant.backend for module in modules_for(other)
        }
        mine = [modules[each.module] for each in made]
        home = furnished(work, key, mine, {each.module: each.library for each in made}, work / "own")
        yield partial(campaigns.run, name, plant.backend, home)


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
    ran = [by_plant[plant.name] for plant in plants if plant.name in by_plant and not plant.equivalent]
    times = [each.seconds for each in ran if each.seconds is not None]
    after = f"{median(times):.0f} s (median)" if times else ""
    cases, deaths = (str(sum(numbers)) for numbers in ([each.cases for each in ran], [each.deaths for each in ran]))
    rows.append(
        ("all that are not equivalent", "", "", "", f"{len(times)} of {len(ran)}", after, cases, deaths, "", "")
    )
    columns = ("plant", "area", "mistake", "file", "finding", "after", "cases", "deaths", "causes", "first cause")
    _show("Regressions planted in CUDA sources", columns, rows, results.machine)
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
        return (*known, "not run", "", "", "", "", plant.equivalent)
    found = result.seconds is not None
    text = result.error or (result.titles[0] if result.titles else "")
    if plant.equivalent:
        text = f"equivalent: {plant.equivalent} {text}".strip()
    after = f"{result.seconds:.0f} s" if result.seconds is not None else ""
    causes = str(len(result.titles))
    return (*known, "yes" if found else "no", after, str(result.cases), str(result.deaths), causes, text)


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
