"""Edits that reset a field to its default, or move it closer to that."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from attnfuzz.reference.case import Case, Mask
from attnfuzz.reference.edits.cuts import lower

_SMALL_SEEDS = (1, 2, 3)
_PARTS = ("pages", "scales", "queries", "views", "rope", "serving", "shared_keys")


def use_defaults(case: Case) -> Iterator[Case]:
    """Yield every field with a default at it; then one field; then one field of one of their parts."""
    # The backend decides whether keys are rotated.
    defaults = {name: default for name, default in _defaults(case).items() if name != "rope"}
    yield replace(case, **defaults)
    for name, default in defaults.items():
        yield replace(case, **{name: default})
    for name in _PARTS:
        part = getattr(case, name)
        for field, default in _defaults(part).items() if part is not None else ():
            yield replace(case, **{name: replace(part, **{field: default})})


def call_plainly(case: Case) -> Iterator[Case]:
    """Yield one argument form, or one event of a life, less."""
    for name in ("arguments", "life"):
        chosen = getattr(case, name)
        for at in range(len(chosen) if len(chosen) > 1 else 0):
            yield replace(case, **{name: chosen[:at] + chosen[at + 1 :]})


def plainer_mask(case: Case) -> Iterator[Case]:
    """Yield all plainer masks, the plainest first."""
    for mask in tuple(Mask)[: tuple(Mask).index(case.mask)]:
        yield replace(case, mask=mask)


def lower_numbers(case: Case) -> Iterator[Case]:
    """Yield less slack, fewer spare pages, a smaller hole, a smaller seed."""
    for slack in lower(case.max_len_slack, 0):
        yield replace(case, max_len_slack=slack)
    for spare in lower(case.pages.spare, 1):
        yield replace(case, pages=replace(case.pages, spare=spare))
    # Down to what the failure needs: more pages than 16-bit ids count differ from offsets beyond 2^31.
    for hole in lower(case.pages.hole, 0):
        yield replace(case, pages=replace(case.pages, hole=hole))
    for slack in lower(case.pages.table_slack, 0):
        yield replace(case, pages=replace(case.pages, table_slack=slack))
    for gap in lower(case.views.table_gap, 0):
        yield replace(case, views=replace(case.views, table_gap=gap))
    for seed in _SMALL_SEEDS:
        if seed < case.seed:
            yield replace(case, seed=seed)


def _defaults(struct: msgspec.Struct) -> dict[str, object]:
    """Return the defaults of fields that differ from them."""
    return {
        field.name: field.default
        for field in msgspec.structs.fields(struct)
        if field.default is not msgspec.NODEFAULT and getattr(struct, field.name) != field.default
    }


EDITS = (use_defaults, plainer_mask, call_plainly, lower_numbers)
