"""Fields that a user gives, checked and converted to their types: torch's dtypes and plain strings are values, too."""

import contextlib
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
        single = _single(type(struct), given | {field: (given[field],)}, getattr(struct, field))
        expected = f"{_expected(hints[field])}{single}"
        raise TypeError(f"{name}: {field} is {getattr(struct, field)!r}: give {expected}") from error
    for field in hints:
        force_setattr(struct, field, getattr(converted, field))


def _single(kind: type[msgspec.Struct], with_tuple: dict[str, Any], value: object) -> str:
    """Return a hint at the tuple of one value, if that would be right, or ""."""
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert(with_tuple, _fields(kind))
        return f", such as ({value!r},)"
    return ""


def did_you_mean(error: BaseException, structs: Iterable[type[msgspec.Struct]]) -> str:
    """Return a hint at the right field and its struct, if one was given that a struct does not have, or ""."""
    found = _UNEXPECTED.search(str(error)) if type(error) is TypeError else None
    if found is None:
        return ""
    owners: dict[str, list[str]] = {}
    for struct in structs:
        for field in struct.__struct_fields__:
            owners.setdefault(field, []).append(struct.__name__)
    close = difflib.get_close_matches(found[1], owners, n=3)
    hints = (f"{field} of {' or '.join(owners[field])}" for field in close)
    return f" (did you mean {', or '.join(hints)}?)" if close else ""


def choices_of(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Return a hint at the values of an enum, if converting JSON to `kind` failed because of one, or ""."""
    message, _, path = str(error).partition(" - at `$")
    if not message.startswith("Invalid enum value"):
        return ""
    hints: list[Any] = [kind]
    for name in re.findall(r"\w+", re.sub(r"\[.*?\]", "", path)):
        structs = (each for hint in hints for each in _alternatives(hint))
        hints = [
            found[name] for each in structs if issubclass(each, msgspec.Struct) and name in (found := _hints(each))
        ]
    members = dict.fromkeys(filter(None, (_members(each) for hint in hints for each in _alternatives(hint))))
    return f": give one of {', '.join(members)}" if members else ""


def _alternatives(hint: Any) -> list[type]:
    """Return the types that a hint names: those of a union, and of the items of a tuple or the values of a mapping."""
    inner = [each for arg in get_args(hint) for each in _alternatives(arg)]
    return inner or ([hint] if isinstance(hint, type) else [])


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
    if not (isinstance(hint, type) and issubclass(hint, Enum)):
        return ""
    values = [str(each.value) for each in hint]
    # A string of digits is no number.
    return ", ".join(map(repr, values) if any(map(str.isdigit, values)) else values)
