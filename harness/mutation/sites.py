"""The places of a source file that can be changed: expressions and statements of its functions, with their slots."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_TEXT_ONLY = frozenset({"debug", "info", "warning", "warning_once", "error", "exception", "log", "warn", "print"})
"""Names of functions whose arguments are only read by people."""

_COMPOUND = (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.Match)


@dataclass(frozen=True)
class ChangeableNode:
    """A node in a function, in the field of its `parent` (and at the index of a list), within a `statement`.

    `names` are the local names and the attributes of each object that the function reads, in order.
    """

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    statement: ast.stmt
    names: "Names"

    def put(self, node: ast.AST) -> None:
        """Replace the node in the tree."""
        ast.copy_location(node, self.node)
        ast.fix_missing_locations(node)
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    @property
    def lines(self) -> range:
        """The lines of the statement; of a compound one, those of its head."""
        return lines_of(self.statement)


@dataclass(frozen=True)
class Names:
    """The names that a function reads: local ones, and the attributes of each object, by its source."""

    local: tuple[str, ...]
    attributes: dict[str, tuple[str, ...]]


def lines_of(statement: ast.stmt) -> range:
    """Return the lines of a statement; of a compound one, those before its body."""
    if not isinstance(statement, _COMPOUND):
        return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    body = statement.cases[0].pattern if isinstance(statement, ast.Match) else statement.body[0]
    return range(statement.lineno, max(statement.lineno + 1, body.lineno))


def sites_of(tree: ast.Module) -> Iterator[ChangeableNode]:
    """Yield the sites of all functions, statement by statement, each function's own before those of inner ones.

    Text is left out: docstrings, exceptions, log calls. So are decorators, annotations and defaults, which run when a
    module is imported.
    """
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not _compiled(function):
            names = _names_in(function)
            for index, statement in enumerate(function.body):
                yield from _in_statement(statement, function, "body", index, names)


def _compiled(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator compiles the function's source itself, as Triton does."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def _in_statement(
    statement: ast.stmt, parent: ast.AST, field: str, index: int | None, names: Names
) -> Iterator[ChangeableNode]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise | ast.Import):
        return
    if _is_text(statement):
        return
    yield ChangeableNode(statement, parent, field, index, statement, names)
    for name, value in ast.iter_fields(statement):
        for place, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(each, ast.stmt):
                yield from _in_statement(each, statement, name, place, names)
            elif isinstance(each, ast.ExceptHandler | ast.match_case):
                for inner, body in enumerate(each.body):
                    yield from _in_statement(body, each, "body", inner, names)
            elif isinstance(each, ast.AST) and name != "annotation":
                yield from _in_expression(each, statement, name, place, statement, names)


def _in_expression(
    node: ast.AST, parent: ast.AST, field: str, index: int | None, statement: ast.stmt, names: Names
) -> Iterator[ChangeableNode]:
    if isinstance(node, ast.JoinedStr | ast.Lambda):
        return
    yield ChangeableNode(node, parent, field, index, statement, names)
    for name, value in ast.iter_fields(node):
        for place, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(each, ast.AST):
                yield from _in_expression(each, node, name, place, statement, names)


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or a call that only prints or logs."""
    if not isinstance(statement, ast.Expr):
        return False
    value: Any = statement.value
    if isinstance(value, ast.Call):
        called = value.func
        return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in _TEXT_ONLY
    return isinstance(value, ast.Constant)


def _names_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Names:
    arguments = function.args
    local = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    attributes: dict[str, list[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            local.append(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            attributes.setdefault(ast.unparse(node.value), []).append(node.attr)
    own = tuple(name for name in dict.fromkeys(local) if name != "self")
    return Names(own, {of: tuple(dict.fromkeys(found)) for of, found in attributes.items()})
