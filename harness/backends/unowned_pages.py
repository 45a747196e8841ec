"""A trial: whether a function survives a pool with pages that have addresses, but no memory.

Such pages move offsets beyond 2^31, where 32-bit arithmetic wraps. They belong to no request, so a paged kernel never
touches them; a function that converts or copies the whole pool does, and can't be tested with them.
"""

from collections.abc import Callable

from msgspec.structs import replace

from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.supported import dtype_pairs, head_dims

_ELEMENTS = 1 << 18
"""Elements without memory: more than any page of an operating system has, and few enough for 32-bit offsets. A function
that fails for larger pools alone has the bug that these pools are drawn for.
"""


def small_case(can: Capability) -> Case | None:
    """Return a case of one key per request on a pool with unowned pages, or None if `can` covers none like it."""
    bucket = next(iter(can.buckets), None)
    if bucket is not None:
        q_heads, kv_heads = bucket.heads[0]
        geometry = Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=bucket.head_dim_qk,
            head_dim_vo=bucket.head_dim_vo,
            page_size=bucket.page_sizes[0],
            dtype=bucket.dtype,
            kv_dtype=bucket.kv_dtype,
            kv_layout=bucket.layouts[0],
            window_left=bucket.windows[0],
            sinks=bucket.sinks[0],
            soft_cap=bucket.soft_caps[0],
            latent=bucket.latent,
        )
    else:
        (dtype, kv_dtype), dim = dtype_pairs(can)[0], head_dims(can)[0]
        geometry = Geometry(
            q_heads=1,
            kv_heads=1,
            head_dim_qk=dim,
            head_dim_vo=dim,
            page_size=min(can.page_sizes),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=can.layouts[0],
        )
    modes = bucket.modes if bucket is not None and bucket.modes else can.modes
    mode = Mode.DECODE if Mode.DECODE in modes else modes[0]
    requests = tuple(Request(slot=slot, q_len=1, kv_len=1) for slot in range(2))
    step = Step(mode=mode, requests=requests, padded_tokens=2, tokens_per_request=int(mode.speculative))
    case = Case(backend="trial", geometry=geometry, steps=(step,))
    page = geometry.page_size * geometry.kv_heads * max(geometry.head_dim_qk, geometry.head_dim_vo)
    case = replace(case, pages=replace(case.pages, hole=-(-_ELEMENTS // page)))
    return case if replace(can, pool_holes=True).can_run(case) else None


def touches_unowned_pages(case: Case, dies: Callable[[Case], Death | None]) -> bool:
    """Return whether a function dies in `case` by a signal, but not without the unowned pages.

    `dies` runs a case in a worker, and returns the worker's death, if it died.
    """
    death = dies(case)
    if death is None or death.signal is None or death.hang:
        return False
    return dies(replace(case, pages=replace(case.pages, hole=0))) is None
