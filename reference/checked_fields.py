"""Fields that a user gives, checked and converted to their types: torch's dtypes and plain strings are values, too."""

import difflib
import re
from collections.abc import Iterable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import torch
from msgspec.structs import force_setattr

_SINGULARS = {bool: "True or False", int: "an integer", float: "a number", NoneType: "None"}
_PLURALS = {int: "integers", float: "numbers"}

_UNEXPECTED = re.compile(r"Unexpected keyword argument '(\w+)'")


def check_fields(struct: msgspec.Struct) -> None:
    """Convert the fields of a struct to their types, for its __post_init__.

    Lists become tuples, strings members of enums, and torch's dtypes DTypes. Raises TypeError with the name of a wrong
    field and its values.
    """
    name, hints = type(struct).__name__, _hints(type(struct))
    given = {field: _without_torch(getattr(struct, field)) for field in hints}
    try:
        converted = msgspec.convert(given, _fields(type(struct)))
    except msgspec.ValidationError as error:
        field = str(error).rpartition("$.")[2].partition("[")[0].rstrip("`")
        if field not in hints:
            raise TypeError(f"{name}: {error}") from error
        raise TypeError(f"{name}: {field} is {getattr(struct, field)!r}: give {_expected(hints[field])}") from error
    for field in hints:
        force_setattr(struct, field, getattr(converted, field))


def did_you_mean(error: BaseException, structs: Iterable[type[msgspec.Struct]]) -> str:
    """Return a hint at the right field, if a struct was given one that it does not have, or ""."""
    found = _UNEXPECTED.search(str(error)) if type(error) is TypeError else None
    if found is None:
        return ""
    fields = {field for each in structs for field in each.__struct_fields__}
    close = difflib.get_close_matches(found[1], fields, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__}


@cache
def _fields(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct of the same fields, which has no __post_init__."""
    return msgspec.defstruct(kind.__name__, list(_hints(kind).items()), kw_only=True)


def _without_torch(value: object) -> object:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return tuple(_without_torch(each) for each in value) if isinstance(value, tuple | list) else value


def _expected(hint: Any) -> str:
    """Return the values of a type in words."""
    return " or ".join(map(_one, get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)))


def _one(hint: Any) -> str:
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        return f"a tuple of {_members(kind) or _PLURALS.get(kind) or kind.__name__}"
    return _members(hint) or _SINGULARS.get(hint) or str(getattr(hint, "__name__", hint))


def _members(hint: Any) -> str:
    return ", ".join(str(each.value) for each in hint) if isinstance(hint, type) and issubclass(hint, Enum) else ""
