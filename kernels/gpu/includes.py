"""The modules whose sources include a file, found by reading #include lines: a compiler is not needed for it.

    python -m attnfuzz.kernels.gpu.includes FILE... < modules.pickle

Like compilation, this runs as a separate process that sees no GPU, because importing FlashInfer creates a CUDA context.
Lines under #if count as included, so that a module may be named that does not need the file, but none is left out.
"""

import importlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from attnfuzz.kernels.building.library_cache import BuildFailed
from attnfuzz.kernels.gpu.build_record import ARCH_LIST, Module
from attnfuzz.reference.user_error import UserError

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_DATA = "data"
"""The folder of an installed FlashInfer with its headers (include) and sources (csrc)."""


class NotIncluded(UserError):
    """No module's sources include a file. The message has the remedy."""


def modules_including(modules: Sequence[Module], files: Sequence[Path], archs: str) -> tuple[Module, ...]:
    """Return the `modules` whose sources are or include one of `files`, for FlashInfer's names of architectures.

    A file is one of the installed FlashInfer, or of a checkout: then the installed one with the same path below
    `include` or `csrc` counts. Raises NotIncluded for a file that no module includes, BuildFailed if FlashInfer can't
    be asked.
    """
    command = [sys.executable, "-m", "attnfuzz.kernels.gpu.includes", *map(str, files)]
    done = subprocess.run(
        command,
        input=pickle.dumps(tuple(modules)),
        capture_output=True,
        check=False,
        env={**os.environ, ARCH_LIST: archs, "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BuildFailed(f"FlashInfer's sources can't be listed: {''.join(last) or 'no reason was given'}")
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, list[str]])
    for file, names in found.items():
        if not names:
            raise NotIncluded(
                f"no module's sources include {file}: give a header or a source of FlashInfer's kernels, such as "
                "include/flashinfer/attention/prefill.cuh"
            )
    wanted = {name for names in found.values() for name in names}
    return tuple(module for module in modules if module.name in wanted)


def including(
    sources: Callable[[Module], Iterable[Path]],
    modules: Iterable[Module],
    files: Sequence[str],
    folders: Sequence[Path],
) -> dict[str, list[str]]:
    """Return the names of the modules that include each file. `folders` are searched for included files."""
    found: dict[str, list[str]] = {file: [] for file in files}
    for module in modules:
        reached = _reached(sources(module), tuple(folders))
        for file in files:
            if any(_is_same(Path(file), each) for each in reached):
                found[file].append(module.name)
    return found


def _reached(sources: Iterable[Path], folders: tuple[Path, ...]) -> set[Path]:
    """Return the files that `sources` include, and themselves."""
    reached: set[Path] = set()
    waiting = [source.resolve() for source in sources]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += _included(file, folders)
    return reached


@cache
def _included(file: Path, folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the files that a file includes and that are in its own folder, or in one of `folders`."""
    try:
        names = [name.decode(errors="replace") for name in _INCLUDE.findall(file.read_bytes())]
    except OSError:
        return ()
    return tuple(path for name in names if (path := _found(name, (file.parent, *folders))) is not None)


@cache
def _found(name: str, folders: tuple[Path, ...]) -> Path | None:
    return next((path.resolve() for folder in folders if (path := folder / name).is_file()), None)


def _is_same(file: Path, reached: Path) -> bool:
    """Return whether a file that a user names is `reached`, here or in a checkout."""
    if file.exists() and file.resolve() == reached:
        return True
    below = reached.parts[len(reached.parts) - reached.parts[::-1].index(_DATA) :] if _DATA in reached.parts else ()
    named = file.parts
    if below and named[-len(below) :] == below:
        return True
    return not file.is_absolute() and not file.exists() and reached.parts[-len(named) :] == named


def _sources(module: Module) -> Iterator[Path]:
    """Yield the sources of a module. One that FlashInfer refuses has none: `build` reports it."""
    try:
        yield from map(Path, module.spec().sources)
    except Exception:  # noqa: BLE001 - any error concerns this module alone
        return


def main() -> None:
    """Write the names of the modules, pickled on standard input, that include each file named as an argument."""
    modules: Sequence[Module] = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our parent
    # FlashInfer's log goes to any descriptor.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    environment: Any = importlib.import_module("flashinfer.jit.env")
    # CUTLASS has a thousand headers, which are no part of a change to FlashInfer.
    folders = [environment.FLASHINFER_INCLUDE_DIR, environment.FLASHINFER_CSRC_DIR]
    output.write(msgspec.json.encode(including(_sources, modules, sys.argv[1:], folders)) + b"\n")
    output.flush()


if __name__ == "__main__":
    main()
