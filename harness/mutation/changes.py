"""Changes of one node: another operator, constant, comparison, condition, slice bound, argument, statement or name.

The operators are those of mutation testing (Offutt et al., "An experimental determination of sufficient mutant
operators", TOSEM 1996), and mistakes that planners are reported to have: bounds of slices, swapped and missing
arguments, names of another variable.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from attnfuzz.harness.mutation.sites import ChangeableNode, sites_of
from attnfuzz.reference.user_error import UserError

_SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

_COMPARED: Final[dict[type[ast.AST], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class NoSuchChange(UserError):
    """A source file that can't be read, or has no such change."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One change of one file: number `number` of those on its `line`. `operator` names the kind of change."""

    file: str
    line: int
    number: int
    operator: str
    before: str
    after: str

    @property
    def name(self) -> str:
        """FILE:LINE:NUMBER, with the last part of the file's path."""
        return f"{Path(self.file).name}:{self.line}:{self.number}"


class _Change(NamedTuple):
    """A change that has not been made: `make` returns the node to put in the site's place.

    `shown` has the parts of the node before and after, if the whole of it would hide the change.
    """

    operator: str
    make: Callable[[], ast.AST]
    shown: tuple[ast.AST | None, ast.AST | None] | None = None


class PlacedMutant(NamedTuple):
    """A mutant, and the lines of the statement that it changes."""

    mutant: Mutant
    lines: range


def mutants_of(file: Path) -> list[PlacedMutant]:
    """Return all mutants of a source file, in the order of its lines. Raises NoSuchChange."""
    found: list[PlacedMutant] = []
    numbers: dict[int, int] = {}
    for site, change in _changes_of(_parsed(file)):
        line = getattr(site.node, "lineno", site.statement.lineno)
        number = numbers[line] = numbers.get(line, -1) + 1
        before, after = map(_unparsed, change.shown or (site.node, change.make()))
        mutant = Mutant(file=str(file), line=line, number=number, operator=change.operator, before=before, after=after)
        found.append(PlacedMutant(mutant, site.lines))
    return sorted(found, key=lambda each: (each.mutant.line, each.mutant.number))


def mutated(mutant: Mutant) -> ast.Module:
    """Return the source with one change made. Raises NoSuchChange if the file has it no longer."""
    tree = _parsed(Path(mutant.file))
    numbers: dict[int, int] = {}
    for site, change in _changes_of(tree):
        line = getattr(site.node, "lineno", site.statement.lineno)
        number = numbers[line] = numbers.get(line, -1) + 1
        if (line, number) == (mutant.line, mutant.number):
            site.put(change.make())
            return tree
    raise NoSuchChange(f"{mutant.file} has no change {mutant.name}: it was edited since")


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise NoSuchChange(f"{file} can't be read as Python: {error}") from None


def _unparsed(node: ast.AST | None) -> str:
    """Return the source of a node; a compound statement's first line; "" if there is none."""
    if node is None:
        return ""
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).partition("\n")[0]


def _changes_of(tree: ast.Module) -> Iterator[tuple[ChangeableNode, _Change]]:
    for site in sites_of(tree):
        for change in _changes(site):
            yield site, change


def _changes(site: ChangeableNode) -> Iterator[_Change]:
    node = site.node
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if type(node.op) in _SWAPPED:
            yield _Change("operator", partial(_with, node, op=_SWAPPED[type(node.op)]()))
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield _Change("operator", lambda: operand)
        case ast.Compare(ops=[one]) if type(one) in _COMPARED:
            yield _Change("comparison", partial(_with, node, ops=[_COMPARED[type(one)]()]))
        case ast.Constant(value=value):
            yield from _of_constant(value)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            negated = ast.UnaryOp(ast.Not(), test)
            yield _Change("condition", partial(_with, node, test=negated), (test, negated))
        case ast.Slice():
            yield from _of_slice(node)
        case ast.Call():
            yield from _of_call(node)
        case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
            yield from _of_name(node, site)
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield _Change("statement dropped", ast.Pass)
    if isinstance(node, ast.AugAssign):
        yield _Change("statement dropped", ast.Pass)


def _of_constant(value: object) -> Iterator[_Change]:
    if isinstance(value, bool):
        yield _Change("constant", partial(ast.Constant, not value))
    elif isinstance(value, int):
        yield _Change("constant", partial(_number, value + 1))
        yield _Change("constant", partial(_number, value - 1))
    elif isinstance(value, float):
        yield _Change("constant", partial(ast.Constant, value + 1.0))


def _number(value: int) -> ast.expr:
    """Return a number as Python parses it: a negative one is an operation."""
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def _of_slice(node: ast.Slice) -> Iterator[_Change]:
    for bound in ("lower", "upper"):
        value = getattr(node, bound)
        if value is not None:
            one_more = ast.BinOp(value, ast.Add(), ast.Constant(1))
            yield _Change("slice bound", partial(_with, node, **{bound: one_more}))
            yield _Change("slice bound dropped", partial(_with, node, **{bound: None}))


def _of_call(node: ast.Call) -> Iterator[_Change]:
    for index in range(len(node.args) - 1):
        both = node.args[index : index + 2]
        swapped = [*node.args[:index], *reversed(both), *node.args[index + 2 :]]
        shown = ast.Tuple(both), ast.Tuple(both[::-1])
        yield _Change("arguments swapped", partial(_with, node, args=swapped), shown)
    for index, dropped in enumerate(node.keywords):
        left = [*node.keywords[:index], *node.keywords[index + 1 :]]
        yield _Change("argument dropped", partial(_with, node, keywords=left), (dropped, None))


def _of_name(node: ast.Name | ast.Attribute, site: ChangeableNode) -> Iterator[_Change]:
    """Yield the next name that the function has beside this one. A function's name stays: calls would only fail."""
    if isinstance(site.parent, ast.Call) and site.field == "func":
        return
    if isinstance(node, ast.Name):
        known, own, part = site.names.local, node.id, "id"
        if isinstance(site.parent, ast.Attribute):
            return
    else:
        known, own, part = site.names.attributes.get(ast.unparse(node.value), ()), node.attr, "attr"
    if len(known) > 1 and own in known:
        other = known[(known.index(own) + 1) % len(known)]
        yield _Change("name", partial(_with, node, **{part: other}))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a shallow copy of a node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})
