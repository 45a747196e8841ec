"""Resetting the contents, the memory and the batch of a case to their defaults, together.

A value may be needed only because of another one. If all keys of a request are equal, a wrong slot shows only on
another request's page, so the case passes without shuffled pages, and the smallest case keeps them. With default
values, the failure may need neither.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from attnfuzz.reference.case import Case, Pages
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.edits.removals import no_padding, one_request, slots_in_order

S = TypeVar("S", bound=msgspec.Struct)

_POOL: Final = ("hole", "behind", "free")
"""Fields of the pages that describe memory."""


def default_contents(case: Case) -> Iterator[Case]:
    """Yield the case with default values."""
    yield _reset(case, "values")


def default_memory(case: Case) -> Iterator[Case]:
    """Yield the case with default guards, old contents, workspace and pool."""
    yield replace(_reset(case, "guard", "outputs", "workspace"), pages=_reset(case.pages, *_POOL))


def default_batch(case: Case) -> Iterator[Case]:
    """Yield the case with slots and pages in order, a plain page table, and no padding if that is possible.

    First yield one request alone: in the default order, the memory beside its pages may be that of another request.
    """
    for requests in (*one_request(case), case):
        ordered = next(slots_in_order(requests))
        orderly = replace(ordered, pages=_reset(case.pages, *(set(Pages.__struct_fields__) - set(_POOL))))
        yield next(filter(possible, no_padding(orderly)), orderly)


_GROUPS: Final[tuple[Callable[[Case], Iterator[Case]], ...]] = (default_contents, default_memory, default_batch)


def with_defaults(case: Case) -> Iterator[Case]:
    """Yield the possible cases with defaults for all three groups, then for two, then for one."""
    tried = {case}
    for count in range(len(_GROUPS), 0, -1):
        for groups in combinations(_GROUPS, count):
            for plain in _reset_all(case, groups):
                if plain not in tried and possible(plain):
                    tried.add(plain)
                    yield plain


def _reset_all(case: Case, groups: Sequence[Callable[[Case], Iterator[Case]]]) -> Iterator[Case]:
    if not groups:
        yield case
        return
    for plain in groups[0](case):
        yield from _reset_all(plain, groups[1:])


def _reset(struct: S, *names: str) -> S:
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    return replace(struct, **{name: defaults[name] for name in names})
