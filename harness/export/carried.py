"""Users' code in a script: files that the user allows it to include, without the statements that need attnfuzz."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnfuzz.harness.backends.description import function_place
from attnfuzz.harness.backends.load import module_of_file
from attnfuzz.kernels.backend import Op
from attnfuzz.reference.user_error import UserError

_STUBS = {"Unsupported": 'class Unsupported(Exception):\n    """The kernel does not support the arguments."""'}
"""Definitions that replace names imported from attnfuzz, and need nothing else of it."""


class CannotExport(UserError):
    """A case can't be exported as a stand-alone script; the message says why."""


@dataclass(frozen=True)
class CarriedFile:
    """A user's file: its path, and its source `without` the statements that need attnfuzz."""

    path: Path
    without: str

    @classmethod
    def read(cls, path: Path) -> "CarriedFile":
        """Read a Python file. Raises CannotExport."""
        try:
            return cls(path, _without_attnfuzz(path.read_text()))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
            raise CannotExport(f"{path} can't be carried along: {error}") from error

    def defines(self, module: str) -> bool:
        """Return whether this file is the module of that name."""
        parts = module.split(".")
        return module == module_of_file(self.path.resolve()) or list(self._named.parts[-len(parts) :]) == parts

    @property
    def module(self) -> str:
        """The name under which a script imports it."""
        return self._named.name

    @property
    def name(self) -> str:
        """Its path in a script's folder."""
        return f"{self.module}/__init__.py" if self.path.stem == "__init__" else f"{self.module}.py"

    @property
    def _named(self) -> Path:
        """The path of the module: of the package, for a package's own file."""
        path = self.path.resolve()
        return path.parent if path.stem == "__init__" else path.with_suffix("")

    def lacks(self, function: str) -> bool:
        """Return whether a function of the file is missing from its statements without attnfuzz."""
        return function not in {name for node in ast.parse(self.without).body for name in _bound(node)}


def carried_name(op: Op, files: Sequence[CarriedFile]) -> tuple[CarriedFile, str] | None:
    """Return the file that has an op's function, and its name there; None if no file has it. Raises CannotExport."""
    module, _, function = function_place(op.function).partition(":")
    file = next((each for each in files if each.defines(module)), None)
    if file is None:
        return None
    if not function.isidentifier():
        raise CannotExport(f"{op.name} is {function}, which is not at the top level of {file.path}: move it there")
    if file.lacks(function):
        raise CannotExport(f"{function} in {file.path} needs more of attnfuzz than a script has")
    return file, function


def _without_attnfuzz(source: str) -> str:
    """Return a file's source without the statements that need attnfuzz, directly or through other statements."""
    body, gone = ast.parse(source).body, set[str]()
    dropped: list[ast.stmt] = []
    while more := [node for node in body if node not in dropped and (_imported(node) or gone & _used(node))]:
        dropped += more
        gone.update(*(_bound(node) - _STUBS.keys() for node in more))
    lines = source.splitlines()
    for node in dropped:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        for number in range(first - 1, node.end_lineno or first):
            lines[number] = ""
        lines[first - 1] = "\n\n\n".join(_STUBS[name] for name in sorted(_imported(node) & _STUBS.keys()))
    return "\n".join(lines).rstrip() + "\n"


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
    return module.partition(".")[0] == "attnfuzz"


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
