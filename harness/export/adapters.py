"""Functions of this project between a backend and a library, with everything of ours that they need, for a script.

An adapter calls a library's function in the form that a backend's session uses, such as with `out` as an argument.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attnfuzz.harness.export.carried import STUBS, CannotExport
from attnfuzz.harness.export.python_source import definitions, quoted

MOST_LINES = 300
"""Maximum length of the source that an adapter takes along."""

_OURS = "attnfuzz."
_OUR_PACKAGES = frozenset({"click", "hypothesis", "jinja2", "msgspec", "packaging", "rich", "tvm_ffi"})
"""Packages that attnfuzz needs, and no library's kernel."""

SCRIPT_NAMES = frozenset(
    {"allocate", "allocated", "attention", "beyond", "broken", "build", "calls", "checked", "child", "compare"}
    | {"compare_cache", "compare_lists", "compare_tensor", "damaged", "differ", "elements", "exact", "filled", "first"}
    | {"give_up", "hollow", "leave_nan_in_shared_memory", "main", "memory", "native", "nearest", "normal", "numbers"}
    | {"off_alike", "packed", "put", "repeated", "run", "second", "strided", "tell", "too_noisy"}
)
"""Functions of scripts."""

_STUBS = {
    **STUBS,
    "flashinfer_op": '''class flashinfer_op:
    """FlashInfer's functions by module and name."""

    @staticmethod
    def call(module, name, /, **arguments):
        """Call a function, without those arguments that it lacks and that are None."""
        function = getattr(importlib.import_module(module), name)
        known = inspect.signature(function).parameters
        return function(**{name: value for name, value in arguments.items() if value is not None or name in known})''',
}
"""Definitions that replace those of this project, which need more of it."""


@dataclass
class Adapters:
    """The source of adapters: `texts` of definitions in order, and `imports`, statements for other names in them.

    `known` returns the name of a function that the script has anyway, and None for other objects.
    """

    known: Callable[[Any], str | None] = lambda _: None
    texts: dict[str, str] = field(default_factory=dict)
    imports: dict[str, None] = field(default_factory=dict)
    _origins: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """All definitions, under names that no other function of a script has."""
        names = {name: _own(name) for name in self.texts if name != _own(name)}
        return "\n\n\n".join(renamed(text, names) for text in dict.fromkeys(self.texts.values()))

    def add(self, op: str, function: Callable[..., Any]) -> str:
        """Add the function of an op; return the name by which the script calls it.

        Raises CannotExport if it is not at the top level of a module of this project, or needs too much of it.
        """
        given: tuple[str, ...] = ()
        while isinstance(function, functools.partial):
            values = (*function.args, *function.keywords.values())
            if not all(isinstance(value, str | int | float | bool | None) for value in values):
                raise CannotExport(f"{op} is a function with objects bound to it, which a script can't create")
            named = [f"{name}={quoted(value)}" for name, value in function.keywords.items()]
            given, function = (*map(quoted, function.args), *named, *given), function.func
        known = self.known(function)
        if known is not None and not given:
            return known
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if not given and not _is_at_top_level(function, module, name):
            return self._wrapper(op, function)
        if not module.startswith(_OURS) or not name.isidentifier():
            raise CannotExport(f"{op} is {name} of {module}, which is not at the top level of a module of attnfuzz")
        self._add(importlib.import_module(module), name)
        if self.source.count("\n") > MOST_LINES:
            raise CannotExport(f"{op} needs more than {MOST_LINES} lines of attnfuzz")
        if not given:
            return _own(name)
        called = re.sub(r"\W+", "_", op).strip("_")
        self.imports["import functools"] = None
        self.texts[called] = f"{called} = functools.partial({', '.join((name, *given))})"
        return _own(called)

    def _wrapper(self, op: str, function: Callable[..., Any]) -> str:
        """Add a function that was made around another one, with the values that it closes over; return its name."""
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__))).body[0]
            module = importlib.import_module(str(function.__globals__["__name__"]))
        except (OSError, SyntaxError, AttributeError, KeyError) as error:
            raise CannotExport(f"{op} is a function without source") from error
        if not isinstance(tree, ast.FunctionDef) or not module.__name__.startswith(_OURS):
            raise CannotExport(f"{op} is no function of attnfuzz that a script can contain")
        cells = inspect.getclosurevars(function).nonlocals
        tree.decorator_list = []
        tree.name = re.sub(r"\W+", "_", f"{op}_in_backend")
        tree = _Closed(cells, lambda name, inner: self.add(f"{op}_{name}", inner)).visit(tree)
        self.texts[tree.name] = ""
        for used in sorted({part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}):
            self._resolve(module, used)
        del self.texts[tree.name]
        self.texts[tree.name] = ast.unparse(ast.fix_missing_locations(tree))
        return str(tree.name)

    def _add(self, module: ModuleType, name: str) -> None:
        """Add a top-level name of a module, after the names that it uses."""
        place = f"{module.__name__}:{name}"
        if self._origins.setdefault(name, place) != place:
            raise CannotExport(f"a script can't contain both {place} and {self._origins[name]}")
        if name in self.texts:
            return
        found = next(((used, text) for defined, used, text in definitions(module) if name in defined), None)
        if found is None:
            raise CannotExport(f"{place} is not defined by a statement at the top level of its module")
        used, text = found
        # A function may call itself.
        self.texts[name] = ""
        for other in sorted(used - {name}):
            self._resolve(module, other)
        del self.texts[name]
        self.texts[name] = text

    def _resolve(self, module: ModuleType, name: str) -> None:
        """Add the definition or import of a name in a module's source; nothing for local names and builtins."""
        if any(name in defined for defined, _, _ in definitions(module)):
            self._add(module, name)
            return
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        self._import(node, alias)
                        return

    def _import(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        source = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        if source.partition(".")[0] in _OUR_PACKAGES:
            raise CannotExport(f"an adapter needs {source}, which a script does without")
        if not source.startswith(_OURS):
            of = isinstance(node, ast.ImportFrom)
            self.imports[ast.unparse(ast.ImportFrom(source, [alias], 0) if of else ast.Import([alias]))] = None
        elif alias.name in _STUBS:
            text = _STUBS[alias.name]
            self.texts[alias.name] = text
            for needed in ("importlib", "inspect"):
                if f"{needed}." in text:
                    self.imports[f"import {needed}"] = None
        elif alias.asname is not None or isinstance(node, ast.Import):
            raise CannotExport(f"an adapter needs {alias.name} of attnfuzz under another name")
        elif self.known(getattr(importlib.import_module(source), alias.name, None)) is None:
            self._add(importlib.import_module(source), alias.name)


def _is_at_top_level(function: Callable[..., Any], module: str, name: str) -> bool:
    """Return whether a module's attribute is this function: one made around another may have its name."""
    return getattr(sys.modules.get(module), name, None) is function


class _Closed(ast.NodeTransformer):
    """Replaces variables that a function closes over, and their attributes: functions by names, others by literals."""

    def __init__(self, cells: Mapping[str, Any], add: Callable[[str, Callable[..., Any]], str]) -> None:
        self._cells, self._add = cells, add

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a variable."""
        return self._value(node.id, self._cells[node.id]) if node.id in self._cells else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace an attribute of a variable."""
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in self._cells and hasattr(self._cells[owner.id], node.attr):
            return self._value(node.attr, getattr(self._cells[owner.id], node.attr))
        return self.generic_visit(node)

    def _value(self, name: str, value: Any) -> ast.expr:
        if callable(value):
            return ast.Name(self._add(name, value), ast.Load())
        if isinstance(value, str | int | float | bool | None):
            return ast.Constant(value)
        raise CannotExport(f"{name} of a function is an object that a script can't create")


def _own(name: str) -> str:
    """Return the name that a definition has in a script."""
    return f"{name}_of_library" if name in SCRIPT_NAMES else name


def renamed(source: str, names: Mapping[str, str]) -> str:
    """Return the source of a definition with other `names`, but the same attributes, arguments and strings."""
    lines = [line.encode() for line in source.split("\n")]
    places: list[tuple[int, int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in names:
            places.append((node.lineno, node.col_offset, node.id))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            line = lines[node.lineno - 1]
            places.append((node.lineno, line.index(node.name.encode(), node.col_offset + len("def ")), node.name))
    for number, at, name in sorted(places, reverse=True):
        line = lines[number - 1]
        lines[number - 1] = line[:at] + names[name].encode() + line[at + len(name.encode()) :]
    return b"\n".join(lines).decode()
