"""A user's files in a script: those that the user names, at the same places relative to each other.

Python files lack the statements that need attnfuzz. Files beside them that they import or name are found
(`needed_by`), but never taken without having been named.
"""

import ast
import base64
import os
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

from attnfuzz.harness.backends.description import function_file, function_place
from attnfuzz.harness.backends.load import module_of_file
from attnfuzz.harness.export.python_source import source
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.reference.case_types import FAMILIES
from attnfuzz.reference.user_error import UserError

STUBS = {"Unsupported": 'class Unsupported(Exception):\n    """The kernel does not support the arguments."""'}
"""Definitions that replace names imported from attnfuzz, and need nothing else of it."""

MOST_BYTES = 32 << 20
"""Maximum total size of the files."""

MOST_BYTES_UNASKED = 1 << 20
"""Maximum total size of the files that a campaign's scripts contain unasked."""

_PYTHON = ".py"
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
"""Folders that are never carried, nor hidden ones."""


class CannotExport(UserError):
    """A case can't be exported as a stand-alone script; the message says why."""


class NeedsFiles(CannotExport):
    """A script needs files that the user has not named; `files` are all to name, `given` those named already."""

    def __init__(self, why: str, files: Sequence[Path], given: Sequence[Path] = ()) -> None:
        self.why, self.files, self.given = why, tuple(files), tuple(given)
        super().__init__(self.advice("CASE"))

    def advice(self, case: str) -> str:
        """Return the message with the command that allows the files, for the case at a path."""
        named = " ".join(f"--carry {shlex.quote(str(path))}" for path in (*self.given, *self.files))
        beside = (*self.given, *self.files)[0].resolve().parent
        files = with_sizes(self.files, beside)
        return f"{self.why}: allow the script to contain {files} with attnfuzz export {case} {named}"


def with_sizes(files: Iterable[Path], beside: Path) -> str:
    """Return the names of files relative to a folder, each with its size."""
    sizes = {os.path.relpath(path, beside): path.stat().st_size for path in files}
    return ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items())


@dataclass(frozen=True)
class CarriedFile:
    """A user's file: its path, and its `name` in a script's folder, in POSIX form."""

    path: Path
    name: str

    @cached_property
    def content(self) -> bytes:
        """The bytes that a script has: of a Python file, those `without` the statements that need attnfuzz."""
        return self.without.encode() if self.is_python else self.path.read_bytes()

    @cached_property
    def without(self) -> str:
        """The source of a Python file without the statements that need attnfuzz."""
        return _without_attnfuzz(self.path.read_text())

    @property
    def is_python(self) -> bool:
        """Whether it is a module."""
        return self.path.suffix == _PYTHON

    @property
    def module(self) -> str:
        """The name under which a script imports it."""
        named = PurePath(self.name)
        return ".".join((named.parent if named.stem == "__init__" else named.with_suffix("")).parts)

    def defines(self, module: str) -> bool:
        """Return whether this file is the module of that name."""
        path = self.path.resolve()
        named = path.parent if path.stem == "__init__" else path.with_suffix("")
        parts = module.split(".")
        return module == module_of_file(path) or list(named.parts[-len(parts) :]) == parts

    def lacks(self, function: str) -> bool:
        """Return whether a function of the file is missing from its statements without attnfuzz."""
        return function not in {name for node in ast.parse(self.without).body for name in _bound(node)}

    @property
    def source(self) -> str:
        """An expression for its content: text, or compressed bytes."""
        try:
            return source(self.content.decode())
        except UnicodeDecodeError:
            packed = base64.b64encode(zlib.compress(self.content, 9)).decode()
            return f'zlib.decompress(base64.b64decode("{packed}"))'


def read_files(paths: Sequence[Path]) -> tuple[CarriedFile, ...]:
    """Return the files at `paths`, and those in folders.

    Raises CannotExport for a file that can't be read, or that is no Python in spite of its suffix, and for too many
    bytes.
    """
    files: list[CarriedFile] = []
    try:
        found = [each for path in paths for each in _files_at(path.resolve())]
        roots = sorted({_root(path) for path in found if path.suffix == _PYTHON}, key=lambda root: -len(root.parts))
        for path, folder in dict(zip(found, (_named_in(path, paths) for path in found), strict=True)).items():
            root = next((root for root in roots if path.is_relative_to(root)), folder)
            files.append(CarriedFile(path, path.relative_to(root).as_posix()))
        total = sum(len(each.content) for each in files)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        where = files[-1].path if files else paths[0]
        raise CannotExport(f"{where} can't be carried along: {error}") from error
    if total > MOST_BYTES:
        most = MOST_BYTES >> 20
        raise CannotExport(f"--carry names {total >> 20:,} MiB of files: a script carries at most {most} MiB")
    return tuple(files)


def _files_at(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for each in sorted(path.iterdir()):
            if not each.name.startswith(".") and each.name not in _LEFT_OUT and not each.is_symlink():
                yield from _files_at(each)
    else:
        yield path


def _named_in(path: Path, given: Iterable[Path]) -> Path:
    """Return the folder relative to which a file has its name, unless it lies beside a Python file."""
    folders = [each.resolve() for each in given if each.is_dir() and path.is_relative_to(each.resolve())]
    return folders[0].parent if folders else path.parent


def _root(path: Path) -> Path:
    """Return the folder from which a Python file is imported: the parent of its outermost package."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def check_complete(files: Sequence[CarriedFile], given: Sequence[Path]) -> None:
    """Raise NeedsFiles if one of the files needs others."""
    have = {each.path for each in files}
    missing = [path for each in files if each.is_python for path in needed_by(each.path) if path not in have]
    if missing:
        needing = next(each for each in files if each.is_python and missing[0] in needed_by(each.path))
        why = f"{needing.path.name} needs {missing[0].name}, which is beside it"
        raise NeedsFiles(why, list(dict.fromkeys(missing)), given)


def carried_name(op: Op, files: Sequence[CarriedFile]) -> tuple[CarriedFile, str] | None:
    """Return the file that has an op's function, and its name there; None if no file has it. Raises CannotExport."""
    module, _, function = function_place(op.function).partition(":")
    file = next((each for each in files if each.is_python and each.defines(module)), None)
    if file is None:
        return None
    if not function.isidentifier():
        raise CannotExport(f"{op.name} is {function}, which is not at the top level of {file.path}: move it there")
    if file.lacks(function):
        raise CannotExport(f"{function} in {file.path} needs more of attnfuzz than a script has")
    return file, function


def not_ours(function: Callable[..., Any], called: str, given: Sequence[Path] = ()) -> CannotExport:
    """Return the error for a function whose source a script may not contain, with the command that allows it."""
    place, path = function_place(function), Path(function_file(function))
    if not path.is_file():
        return CannotExport(f"{called} is not part of attnfuzz, and {place} has no file that --carry could name")
    return NeedsFiles(f"{called} is not part of attnfuzz", [path, *needed_by(path)], given)


def unasked(files: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files that a campaign's scripts may contain unasked: these of a backend, and those that they need.

    None of them if all together are larger than MOST_BYTES_UNASKED, or can't be read.
    """
    found = tuple(dict.fromkeys(each for path in files for each in (path, *needed_by(path))))
    try:
        total = sum(path.stat().st_size for path in found)
    except OSError:
        return ()
    return found if total <= MOST_BYTES_UNASKED else ()


def needed_by(path: Path) -> list[Path]:
    """Return the files beside a Python file that it imports, or names in a string, and those that these need."""
    root, found = _root(path.resolve()), [path.resolve()]
    for each in found:
        if each.suffix == _PYTHON:
            found += [other for other in _named_by(each, root) if other not in found]
    return found[1:]


def _named_by(path: Path, root: Path) -> list[Path]:
    """Return the existing files below `root` that the source of a Python file names, none if it can't be read."""
    try:
        body = ast.parse(_without_attnfuzz(path.read_text()))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return []
    named: dict[Path, None] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named.update(dict.fromkeys(_imported_files(node, path, root)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) < 200:
            named.update(dict.fromkeys(_existing(path.parent, node.value, root)))
    return [each for each in named if each != path]


def _existing(folder: Path, text: str, root: Path) -> list[Path]:
    """Return the file at a path relative to a folder, if there is one below `root`."""
    if "\0" in text or PurePath(text).is_absolute() or not PurePath(text).suffix:
        return []
    path = (folder / text).resolve()
    return [path] if path.is_relative_to(root) and path.is_file() else []


def _imported_files(node: ast.Import | ast.ImportFrom, path: Path, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that a statement of the file `path` imports, with those of their packages."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield from _module_files(root, each.name.split("."))
        return
    folder = path.parents[node.level - 1] if node.level else root
    parts = node.module.split(".") if node.module else []
    yield from _module_files(folder, parts)
    for each in node.names:
        yield from _module_files(folder, [*parts, each.name])


def _module_files(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the file of a module below a folder, and those of the packages around it."""
    for end in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:end])
        for candidate in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if candidate.is_file():
                yield candidate.resolve()


def _without_attnfuzz(source: str) -> str:
    """Return a file's source without the statements that need attnfuzz, directly or through other statements."""
    body, gone = ast.parse(source).body, set[str]()
    dropped: list[ast.stmt] = []
    while more := [node for node in body if node not in dropped and (_imported(node) or gone & _used(node))]:
        dropped += more
        gone.update(*(_bound(node) - STUBS.keys() for node in more))
    # Packages that these alone use may be missing where a script runs.
    lost = set().union(*map(_used, dropped)) - set().union(*(_used(node) for node in body if node not in dropped))
    dropped += [node for node in body if isinstance(node, ast.Import | ast.ImportFrom) and _bound(node) & lost]
    lines: list[str | None] = list(source.splitlines())
    for node in dropped:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        for number in range(first - 1, node.end_lineno or first):
            lines[number] = None
        stubs = [STUBS[name] for name in sorted(_imported(node) & STUBS.keys())]
        lines[first - 1] = "\n\n\n".join(stubs) or None
    return "\n".join(_closed_up(lines)).rstrip() + "\n"


def _closed_up(lines: Iterable[str | None]) -> Iterator[str]:
    """Yield lines without those that are None, around which at most two blank ones are kept."""
    for gap, run in groupby(lines, key=lambda line: not line):
        kept = list(run)
        blank = [line for line in kept if line is not None]
        yield from blank[:2] if gap and len(blank) < len(kept) else blank


def _imported(node: ast.stmt) -> set[str]:
    """Return the names that a statement, or one within it, imports from attnfuzz."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.ImportFrom) and not part.level and _is_ours(part.module or ""):
            names |= {each.asname or each.name for each in part.names}
        elif isinstance(part, ast.Import):
            names |= {each.asname or "attnfuzz" for each in part.names if _is_ours(each.name)}
    return names


def _is_ours(module: str) -> bool:
    """Return whether a module is attnfuzz's, or that of a family of ops, which needs attnfuzz."""
    package = module.partition(".")[0]
    return package == "attnfuzz" or any(point.module.partition(".")[0] == package for point in _other_families())


@cache
def _other_families() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=FAMILIES))


def _used(node: ast.stmt) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines at the top level of its file."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    parts = list(ast.walk(node))
    imports = [each for part in parts if isinstance(part, ast.Import | ast.ImportFrom) for each in part.names]
    assigned = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return assigned | {each.asname or each.name.partition(".")[0] for each in imports}
