"""The row of a feature in the table of features: everything that the rest of attnfuzz derives from it.

A feature of a case has a row. Its axis has the values that a case, or each of its steps, may have, and its `removables`
are the special properties that can be taken away. Coverage, ablation, the words of the ledger and of reports follow.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from attnfuzz.reference.case import Case
from attnfuzz.reference.features.classes import Classes, Kinds

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

T = TypeVar("T")

Removal = Callable[[Any], Iterable[Any]]
"""Yields variants of a case without a feature, the plainest first."""


@dataclass(frozen=True)
class Axis(Generic[T]):
    """A dimension of cases or steps. `values` are in a natural order, with the plain one first if there is one.

    `place` returns the values that hold for a case or a step. There may be several, such as the KV lengths of a batch,
    or none if the axis does not apply, unless it is `total`. On a `single` one there is exactly one.
    """

    name: str
    values: tuple[str, ...]
    place: Callable[[T], Iterable[str]]
    total: bool = True
    single: bool = False

    def feature(self, value: str) -> str:
        """Return the feature of a value on this axis, such as "mode=decode"."""
        return f"{self.name}={value}"

    @property
    def features(self) -> tuple[str, ...]:
        """The features of this axis, in the order of its values."""
        return tuple(map(self.feature, self.values))


def single(name: str, values: Iterable[str], place: Callable[[T], str]) -> Axis[T]:
    """Return an axis with exactly one value for every case or step."""
    return Axis(name, tuple(values), lambda subject: (place(subject),), single=True)


def classed(name: str, classes: Classes | Kinds, measure: Callable[[T], Any]) -> Axis[T]:
    """Return an axis of the classes of a number that `measure` takes from a case or a step."""
    return single(name, classes.names, lambda subject: classes.of(measure(subject)))


def flag(name: str, present: Callable[[T], object]) -> Axis[T]:
    """Return an axis with the values "none" and "yes"."""
    return single(name, ("none", "yes"), lambda subject: "yes" if present(subject) else "none")


@dataclass(frozen=True, order=True)
class Feature:
    """A special property of a case, called `name`, that `removal` removes.

    A case has it if it has one of the coverage features in `shown_by`, or if `present` returns True. A `clue` points to
    the cause of a failure, and is kept during shrinking; the others (sizes, values, guards) make a failure visible. A
    `usual` clue is in plain cases too. `counts` marks sizes. If `memory` is set, the feature is NaN in memory that must
    not matter, and its removal puts numbers there.
    """

    name: str
    shown_by: frozenset[str] = field(compare=False, repr=False)
    removal: Removal = field(compare=False, repr=False)
    clue: bool = field(compare=False, repr=False, default=True)
    usual: bool = field(compare=False, repr=False, default=False)
    counts: bool = field(compare=False, repr=False, default=False)
    memory: str = field(compare=False, repr=False, default="")
    present: Callable[[Any], bool] = field(compare=False, repr=False, default=lambda _: False)

    def __str__(self) -> str:
        return self.name

    def shown(self, case: Case, coverage: AbstractSet[str]) -> bool:
        """Return whether a case with these coverage features has it."""
        return not coverage.isdisjoint(self.shown_by) or self.present(case)


@dataclass(frozen=True, kw_only=True)
class FeatureRow(Generic[T]):
    """A feature of cases.

    Its `axis` has a value for a whole case, or if `of_steps`, for each step that runs. `fields` are those of a case
    that determine it, such as "geometry.sinks", and `removables` its properties that can be taken away. Related
    features form a `group`. `filed` are words that the names of findings count, each with the coverage features that
    cause it, and `formerly` words of older ledgers, each with the word that replaces it.

    `supported` returns the values that occur in cases of a backend, and `lack` is the reason why others do not, a
    clause. `refusal` returns the part of a case that a backend does not support, a noun phrase, or None; without one,
    all values are supported. `optional` is a name for the whole feature, if a capability has to ask for it, with a
    function that returns whether it does, or None for a backend that can't.

    `rule` returns the first reason why a case can't exist, or None. `clashes` are features that exclude others by their
    meaning: a reason, and both in the form of rules, such as "window!=none". `draws` returns the variants of a case,
    all but for this feature drawn, in which a backend may get it, the plainest first and likely ones repeatedly;
    without it, the strategies draw the feature with its group. A printed case has it in `line`, with the words that
    `printed` returns, or by default with the names and values of fields that differ from their defaults.
    """

    axis: Axis[T]
    of_steps: bool = False
    fields: tuple[str, ...]
    removables: tuple[Feature, ...] = ()
    group: str = ""
    filed: tuple[tuple[str, frozenset[str]], ...] = ()
    formerly: tuple[tuple[str, str], ...] = ()
    supported: "Supported | None" = None
    lack: str = ""
    refusal: "Refusal | None" = None
    optional: "tuple[str, Callable[[Capability], object]] | None" = None
    rule: "Rule | None" = None
    draws: "Draws | None" = None
    clashes: tuple[tuple[str, str, str], ...] = ()
    line: str = ""
    printed: Callable[[Case], str] | None = None

    @property
    def name(self) -> str:
        """The name of the feature, and of its axis."""
        return self.axis.name

    def words(self, case: Case) -> str:
        """Return the words for this feature in a printed case, or "" if it has its default."""
        return _fields_in_words(case, self.fields) if self.printed is None else self.printed(case)


def _fields_in_words(case: Case, fields: Iterable[str]) -> str:
    """Return names and values of those fields that differ from their defaults."""
    found = []
    for name in fields:
        part, _, inner = name.partition(".")
        value = getattr(case, part)
        if inner and value is None:
            continue
        struct, field = (value, inner) if inner else (case, part)
        has = getattr(struct, field)
        if has != next(each.default for each in msgspec.structs.fields(struct) if each.name == field):
            found.append(f"{name} {has:g}" if isinstance(has, float) else f"{name} {has}")
    return ", ".join(found)


Supported = Callable[["Capability"], Iterable[str]]
Refusal = Callable[["Capability", Case], str | None]

Violation = tuple[str, object, str]
"""A field, its value, and the legal values in words."""

Rule = Callable[[Case], Violation | None]
Draws = Callable[["Capability", Case], tuple[Case, ...]]

Values = Callable[[Axis[Any]], frozenset[str]]
"""Chooses the features of some values of an axis."""

Removable = Callable[[Axis[Any]], Feature]
"""Makes a property of a feature, given its axis."""


def but(*plain: str) -> Values:
    """Return a function from an axis to its features without those of the plain values."""
    return lambda axis: frozenset(axis.features) - _features(axis, plain)


def only(*values: str) -> Values:
    """Return a function from an axis to its features of these values."""
    return lambda axis: _features(axis, values)


def _features(axis: Axis[Any], values: Iterable[str]) -> frozenset[str]:
    features = frozenset(map(axis.feature, values))
    if unknown := features.difference(axis.features):
        raise ValueError(f"no such features: {', '.join(sorted(unknown))}")
    return features


def removable(name: str, shown_by: Values, removal: Removal, *, also: str = "", **others: Any) -> Removable:
    """Return a property that these values show, and the feature `also` of another axis. `others` are as in Feature."""
    return lambda axis: Feature(name, shown_by(axis) | ({also} if also else frozenset()), removal, **others)


def size(name: str, shown_by: Values, removal: Removal, **others: Any) -> Removable:
    """Return a property that is a count: it points to no cause."""
    return removable(name, shown_by, removal, clue=False, counts=True, **others)


def of_case(
    axis: Axis[T],
    fields: str,
    *removables: Removable,
    filed: Mapping[str, Values] = MappingProxyType({}),
    formerly: Mapping[str, str] = MappingProxyType({}),
    **others: Any,
) -> FeatureRow[T]:
    """Return the row of a feature of whole cases. `fields` are separated by spaces, `others` as in FeatureRow."""
    return FeatureRow(
        axis=axis,
        fields=tuple(fields.split()),
        removables=tuple(make(axis) for make in removables),
        filed=tuple((word, values(axis)) for word, values in filed.items()),
        formerly=tuple(formerly.items()),
        **others,
    )


def of_steps(axis: Axis[T], fields: str, *removables: Removable, **others: Any) -> FeatureRow[T]:
    """Return the row of a feature of each step that runs. The arguments are those of `of_case`."""
    return of_case(axis, fields, *removables, of_steps=True, **others)


def offers(supported: Supported, lack: str, value: Callable[[Case], str], text: str = "{}") -> dict[str, Any]:
    """Return the parts of a row whose values a capability lists. `text` is the noun phrase of an unsupported one."""

    def refusal(can: "Capability", case: Case) -> str | None:
        has = value(case)
        return None if has in supported(can) else text.format(has)

    return {"supported": supported, "lack": lack, "refusal": refusal}


def grouped(name: str, *rows: FeatureRow[Any], line: str = "") -> tuple[FeatureRow[Any], ...]:
    """Return the rows as members of a group, which a printed case has in `line` unless a row has a line of its own."""
    return tuple(replace(row, group=name, line=row.line or line) for row in rows)
