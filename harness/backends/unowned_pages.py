"""A trial: whether a function survives a pool with pages that have addresses, but no memory.

Such pages move offsets beyond 2^31, where 32-bit arithmetic wraps. They belong to no request, so a paged kernel never
touches them; a function that converts or copies the whole pool does, and can't be tested with them.
"""

from collections.abc import Callable

from msgspec.structs import replace

from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.strategies.plain_cases import plain_cases

_ELEMENTS = 1 << 18
"""Elements without memory: more than any page of an operating system has, and few enough for 32-bit offsets. A function
that fails for larger pools alone has the bug that these pools are drawn for.
"""


def small_case(can: Capability) -> Case | None:
    """Return a small case on a pool with unowned pages, or None if `can` covers none like it."""
    with_holes = replace(can, pool_holes=True)
    for case in sorted(plain_cases(can, "trial"), key=lambda case: case.steps[0].mode is not Mode.DECODE):
        geometry = case.geometry
        page = geometry.page_size * geometry.kv_heads * max(geometry.head_dim_qk, geometry.head_dim_vo)
        on_holes = replace(case, pages=replace(case.pages, hole=-(-_ELEMENTS // page)))
        if with_holes.can_run(on_holes):
            return on_holes
    return None


def touches_unowned_pages(case: Case, dies: Callable[[Case], Death | None]) -> bool:
    """Return whether a function dies in `case` by a signal, but not without the unowned pages.

    `dies` runs a case in a worker, and returns the worker's death, if it died.
    """
    death = dies(case)
    if death is None or death.signal is None or death.hang:
        return False
    return dies(replace(case, pages=replace(case.pages, hole=0))) is None
