"""Regressions planted in FlashInfer's CUDA sources: reading their files, and compiling modules that contain them.

A plant is a TOML file: `before` is replaced by `after` in the file `source` of FlashInfer's package, at the first place
from `anchor` on, a text that occurs exactly once (`before` itself by default). `units` names the modules that change,
and the files of each that are compiled again. All other files of a module are linked as they are.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ninja

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.kernels.cuda import toolkit
from attnfuzz.kernels.gpu.build_record import Module, installed
from attnfuzz.kernels.gpu.compilation import first_error
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

PLANTS = Path(__file__).with_suffix("").with_name("cuda_regressions")
RELEASES = ("0.7.2.post1", "0.7.4")
"""The releases whose sources the plants change."""

CONTROL = ""
"""The name of no plant: its libraries are unchanged."""

LIMIT = 400.0
"""Seconds for one file."""

_INCLUDE = "data/include/"
# No backend asks for scores of several items (3), and FA3 refuses packed masks (2): symbols are bound when called.
_NEVER_LAUNCHED = ("_mask_3.cu", "sm90_kernel_mask_2.cu")
_LAST = ("sm90_kernel", "kernel", "run")


@cache
def package() -> Path:
    """Return the folder of the installed FlashInfer, without importing it. Raises BadPlant if it is another release."""
    found = find_spec("flashinfer")
    if found is None or found.origin is None or str(installed()) not in RELEASES:
        raise BadPlant(f"the plants change the sources of FlashInfer {' and '.join(RELEASES)}: install one of them")
    return Path(found.origin).parent


class BadPlant(Exception):
    """A plant does not apply, or does not compile; says why in one line."""


@dataclass(frozen=True)
class Plant:
    """A regression: its `area` and `kind`, the `change` in words, and the reason if it changes no result."""

    name: str
    area: str
    kind: str
    change: str
    source: str
    backend: str
    before: str
    after: str
    anchor: str
    units: Mapping[str, tuple[str, ...]]
    equivalent: str = ""

    @classmethod
    def read(cls, path: Path) -> "Plant":
        """Read a plant's file. Raises BadPlant."""
        try:
            content = tomllib.loads(path.read_text())
            texts = {key: content[key].removesuffix("\n") for key in ("before", "after")}
            anchor = content.pop("anchor", content["before"]).removesuffix("\n")
            units = {module: tuple(files) for module, files in content.pop("units").items()}
            return cls(**{**content, **texts}, name=path.stem, anchor=anchor, units=units)
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise BadPlant(f"{path.name} is no plant: {error}") from error

    def planted(self, text: str) -> str:
        """Return the text of its source with the change. Raises BadPlant if it does not apply exactly once."""
        if (times := text.count(self.anchor)) != 1:
            raise BadPlant(f"{self.name} does not apply: its anchor occurs {times} times in {self.source}")
        start = text.find(self.before, text.index(self.anchor))
        if start < 0:
            raise BadPlant(f"{self.name} does not apply: {self.source} lacks its text after the anchor")
        return text[:start] + self.after + text[start + len(self.before) :]


def read_plants(names: Iterable[str] = ()) -> list[Plant]:
    """Read the plants of these names, all by default. Raises BadPlant."""
    paths = [PLANTS / f"{name}.toml" for name in names] or sorted(PLANTS.glob("*.toml"))
    if missing := [path.stem for path in paths if not path.exists()]:
        raise BadPlant(f"no plant is named {missing[0]}: benchmarks/cuda_regressions has a file for each")
    return [Plant.read(path) for path in paths]


def modules_for(plant: Plant) -> list[Module]:
    """List the modules of the buckets that a plant concerns: those that its backend draws cases for."""
    backend = resolve(plant.backend)
    assert isinstance(backend, GpuBackend)
    of_buckets = [backend.modules_of(bucket) for bucket in backend.capability.buckets]
    found = {
        module.name: module
        for modules in of_buckets
        if any(module.name in plant.units for module in modules)
        for module in modules
    }
    if missing := plant.units.keys() - found:
        raise BadPlant(f"{plant.name}: {plant.backend} has no module {min(missing)}")
    return list(found.values())


@cache
def spec_of(module: Module) -> Any:
    """Return a module's JitSpec (flashinfer.jit), after writing the files that FlashInfer generates for it."""
    spec = module.spec()
    spec.write_ninja()
    return spec


def library_name(module: Module, plant: Plant | None) -> str:
    """Return the file name of a library, which holds a hash of all that it depends on."""
    digest = hashlib.sha256()
    parts = [module.name, str(installed()), os.environ["FLASHINFER_CUDA_ARCH_LIST"], _nvcc_release()]
    # Objects that were compiled from links to the headers, with the same text, may have no change in them.
    parts += ["copied headers", plant.before, plant.after, plant.anchor, *plant.units[module.name]] if plant else []
    for part in parts:
        digest.update(part.encode() + b"\0")
    return f"{plant.name if plant else 'unchanged'}-{digest.hexdigest()[:12]}.so"


@cache
def _nvcc_release() -> str:
    text = subprocess.run([toolkit.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    return str(re.findall(r"release [\d.]+", text)[0])


@dataclass(frozen=True)
class Unit:
    """One file to compile: a shell command, the object that it writes, and the changed file that it must include."""

    command: str
    object: Path
    changed: Path | None = None

    def compile(self) -> str:
        """Compile it unless that was done. Returns the first error, "" if there is none."""
        if self.object.exists():
            return ""
        self.object.parent.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(
                ["/bin/bash", "-c", self.command], capture_output=True, text=True, check=False, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return f"{self.object.name} took longer than {LIMIT:.0f} s"
        if done.returncode:
            return first_error(done.stdout + done.stderr)[0]
        if self.changed and str(self.changed) not in Path(f"{self.object.with_suffix('.partial')}.d").read_text():
            return f"{self.object.name} does not include the changed {self.changed.name}"
        self.object.with_suffix(".partial").replace(self.object)
        return ""


@dataclass(frozen=True)
class Linked:
    """A library to make: the plant that it holds, if any, its units, and the command that links their objects."""

    library: Path
    plant: str
    module: str
    units: tuple[Unit, ...]
    link: str


def linked(module: Module, plant: Plant | None, work: Path) -> Linked:
    """Prepare the compilation of a module with a plant, or unchanged, in `work`. Raises BadPlant."""
    spec = spec_of(module)
    entries = _commands(spec.ninja_path)
    sources = [Path(entry["file"]) for entry in entries if not entry["output"].endswith(".so")]
    changed = frozenset(plant.units.get(module.name, ()) if plant else ())
    if missing := changed - {source.name for source in sources}:
        raise BadPlant(f"{plant and plant.name}: {module.name} has no file {min(missing)}")
    if plant and changed:
        plant.planted((package() / plant.source).read_text())
    units = []
    for entry in entries:
        if entry["output"].endswith(".so") or entry["file"].endswith(_NEVER_LAUNCHED):
            continue
        source = Path(entry["file"])
        planted = plant if source.name in changed else None
        folder = work / "objects" / library_name(module, planted).removesuffix(".so")
        target = folder / f"{source.name}.o"
        command = entry["command"].replace(entry["output"], str(target.with_suffix(".partial")))
        changed_file = None
        if planted and not target.exists():
            tree, changed_file = _tree(planted, spec, work)
            command = command.replace(str(package() / _INCLUDE.rstrip("/")), str(tree / "include"))
            if (tree / "generated").exists():
                command = command.replace(str(source.parent), str(tree / "generated"))
        units.append(Unit(command, target, changed_file))
    library = work / "libraries" / library_name(module, plant if changed else None)
    link = next(entry["command"] for entry in entries if entry["output"].endswith(".so"))
    compiler, *flags = shlex.split(link)
    kept = [flag for flag in flags if not flag.endswith((".o", ".so")) and flag != "-o"]
    objects = [str(unit.object) for unit in units]
    command = shlex.join([compiler, *objects, *kept, "-Wl,-z,lazy", "-o", f"{library}.partial"])
    return Linked(library, plant.name if plant and changed else CONTROL, module.name, tuple(units), command)


def compile_all(
    wanted: Iterable[Linked], jobs: int, time_left: Callable[[], float], progress: Callable[[str], None]
) -> Iterator[BadPlant]:
    """Compile and link the missing libraries, `jobs` files at a time, slow files first. Yields the failures."""
    todo = [each for each in wanted if not each.library.exists()]
    units = {unit.object: unit for each in todo for unit in each.units if not unit.object.exists()}
    progress(f"{len(todo)} libraries and {len(units)} files to compile, {jobs} at a time")
    slow_first = sorted(
        units.values(), key=lambda unit: next((i for i, k in enumerate(_LAST) if k in unit.object.name), 9)
    )

    def compiled(unit: Unit) -> str:
        return unit.compile() if time_left() > 0 else "no time was left"

    with ThreadPoolExecutor(jobs) as pool:
        errors = dict(zip((unit.object for unit in slow_first), pool.map(compiled, slow_first), strict=True))
        for each, reason in zip(todo, pool.map(partial(_link, errors=errors), todo), strict=True):
            if reason:
                yield BadPlant(f"{each.plant or 'unchanged'}, {each.module}: {reason}")


def _link(one: Linked, errors: Mapping[Path, str]) -> str:
    """Link a library unless one of its units has an error. Returns the first error, "" if there is none."""
    if reason := next((errors[unit.object] for unit in one.units if errors.get(unit.object)), ""):
        return reason
    one.library.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["/bin/bash", "-c", one.link], capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["the linker failed"])[-1]
    Path(f"{one.library}.partial").replace(one.library)
    return ""


@cache
def _commands(file: Path) -> tuple[Mapping[str, str], ...]:
    """List the commands of a module's build as ninja knows them: `command`, `file`, `output`."""
    command = [f"{ninja.BIN_DIR}/ninja", "-C", str(file.parent), "-f", str(file), "-t", "compdb"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stdout))


def _tree(plant: Plant, spec: Any, work: Path) -> tuple[Path, Path]:
    """Make a copy of FlashInfer's headers with one changed file. Returns its folder, and that file.

    Not of links: gcc opens a system header by its real path if that is shorter (-fcanonical-system-headers), and then
    finds the unchanged files beside it.
    """
    tree = work / "trees" / plant.name / _short(spec.name)
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(package() / _INCLUDE, tree / "include")
    if plant.source.startswith(_INCLUDE):
        targets = [tree / "include" / plant.source.removeprefix(_INCLUDE)]
    else:
        # A text of FlashInfer's generator, which it has written into a header beside the module's files.
        shutil.copytree(Path(spec.sources[0]).parent, tree / "generated")
        targets = [path for path in (tree / "generated").iterdir() if plant.before in path.read_text()]
        if len(targets) != 1:
            raise BadPlant(f"{plant.name} does not apply: {len(targets)} generated files have its text")
    (target,) = targets
    target.write_text(plant.planted(target.read_text()))
    return tree, target


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]
