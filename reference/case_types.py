"""The types of cases by their tags, and decoding a case of any type."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, cast

import msgspec

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.checked_fields import choices_of
from attnfuzz.reference.recurrent.case import StateCase
from attnfuzz.reference.sparse.case import SparseCase

FAMILIES = "attnfuzz.families"
"""The entry point group in which a package offers a family of ops, named by the tag of its cases."""

OWN: tuple[type[AnyCase], ...] = (Case, CallCase, StateCase, SparseCase)
"""The types without an entry point. The first one is that of cases without a tag."""


def decode_any(wanted: type, plain: Any) -> Any:
    """Convert a case of any type from JSON's types: the `dec_hook` of decoders of structs with cases.

    Raises msgspec.ValidationError.
    """
    if wanted is not AnyCase:
        raise NotImplementedError(f"{wanted.__name__} has no JSON")
    if not isinstance(plain, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(plain).__name__}`")
    tag = plain.get("kind", tag_of(OWN[0]))
    found = _type_of(tag) if isinstance(tag, str) else None
    if found is None:
        raise msgspec.ValidationError(f"Invalid value {tag!r} - at `$.kind`")
    try:
        return msgspec.convert(plain, found)
    except msgspec.ValidationError as error:
        choices = choices_of(error, cast("type[msgspec.Struct]", found))
        raise msgspec.ValidationError(f"{error}{choices}") from error


def tag_of(kind: type[AnyCase]) -> str:
    """Return the tag of a type of cases, which is the name of its family's entry point."""
    return str(cast("type[msgspec.Struct]", kind).__struct_config__.tag)


def _type_of(tag: str) -> type[AnyCase] | None:
    if tag not in _types():
        for point in entry_points(group=FAMILIES, name=tag):
            point.load()
    return _types().get(tag)


def _types() -> dict[str, type[AnyCase]]:
    return {tag_of(each): each for each in (*_subclasses(AnyCase), *OWN)}


def _subclasses(kind: type[AnyCase]) -> Iterator[type[AnyCase]]:
    """Yield the subclasses that have none of their own: the others are bases of types."""
    for each in kind.__subclasses__():
        yield from _subclasses(each) if each.__subclasses__() else (each,)
