"""Cases that are a list of fields: each is a bounded integer, a choice, or fixed.

class CopyCase(SimpleCase, frozen=True, kw_only=True, tag="copy"):
    rows: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    backwards: bool = False
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import inspect

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.validity import ImpossibleCase, validate_backend_name


class SimpleCase(AnyCase, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """A case of one step, whose mode is its tag. Subclasses have more fields, all with defaults."""

    backend: str
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    guard: Guard = Guard.RIGHT
    outputs: Outputs = Outputs.POISONED
    past: tuple[PastFailure, ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        """The tag, since a case has one step."""
        return (str(self.__struct_config__.tag),)

    def validate(self) -> None:
        """Raise ImpossibleCase for the first field whose value is not of its type, or beyond its bounds."""
        validate_backend_name(self.backend)
        try:
            msgspec.convert(msgspec.to_builtins(self), type(self))
        except msgspec.ValidationError as error:
            wanted, _, place = str(error).partition(" - at `$.")
            field = place.partition("[")[0].rstrip("`")
            legal = wanted.replace("Expected ", "must be ", 1).replace("`", "")
            raise ImpossibleCase(field or "case", getattr(self, field, None), legal) from error


@cache
def choices(kind: type[SimpleCase]) -> Mapping[str, Sequence[Any]]:
    """Return the values of each field of a type of cases that is drawn, the plainest first.

    An integer with both bounds has a range, a bool, an enumeration and a literal have all values after their default.
    """
    found: dict[str, Sequence[Any]] = {}
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)
    for field in struct.fields:
        match field.type:
            case inspect.IntType(ge=int(least), le=int(most)):
                found[field.name] = range(least, most + 1)
            case inspect.BoolType():
                found[field.name] = _with_first(field.default, (False, True))
            case inspect.EnumType(cls=members):
                found[field.name] = _with_first(field.default, tuple(members))
            case inspect.LiteralType(values=values):
                found[field.name] = _with_first(field.default, values)
    return MappingProxyType(found)


def _with_first(first: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    return (first, *(each for each in values if each != first))
