"""Cases for releases, and for engines that schedule requests themselves, with steps written as tuples."""

from collections.abc import Mapping

from msgspec.structs import replace
from small_cases import SERVED_LATENTS

from attnfuzz.reference.case import Case, Launch, Mode, PageOrder, Pages, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.serving import Serving

GEOMETRY = Geometry(
    q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)
ENGINES: Mapping[str, Geometry] = {
    "engine": GEOMETRY,
    "engine_sm90": GEOMETRY,
    "engine_sm80": GEOMETRY,
    "engine_flash_attn": GEOMETRY,
    "engine_cpu": replace(GEOMETRY, page_size=32, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16),
    "engine_mla": SERVED_LATENTS,
    "engine_triton": replace(GEOMETRY, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16),
}
"""The kinds of vLLM with its engine, and a geometry of each."""

_DRAFTED = (Request(0, 4, 40), Request(1, 4, 17))
STEPS: Mapping[str, tuple[Step, ...]] = {
    "decode": (
        Step(mode=Mode.DECODE, requests=(Request(0, 1, 40), Request(1, 1, 1)), padded_tokens=3, tokens_per_request=1),
    ),
    "verify": (Step(mode=Mode.TARGET_VERIFY, requests=_DRAFTED, padded_tokens=8, tokens_per_request=4),),
    "drafts of different numbers": (
        Step(
            mode=Mode.DRAFT_EXTEND,
            requests=(Request(0, 4, 40), Request(1, 2, 17)),
            padded_tokens=6,
            tokens_per_request=4,
        ),
    ),
    "graph": tuple(
        Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=16, tokens_per_request=4, launch=launch)
        for launch, requests in ((Launch.CAPTURE, ()), (Launch.REPLAY, _DRAFTED))
    ),
}
"""The steps of a server that drafts, without its prefills."""

LENGTHS = tuple[int, int, int]
"""Slot, q_len and kv_len of a request."""


def extend(*requests: LENGTHS) -> Step:
    of_slots = tuple(Request(*each) for each in requests)
    return Step(mode=Mode.EXTEND, requests=of_slots, padded_tokens=sum(each.q_len for each in of_slots))


def decode(*requests: LENGTHS, launch: Launch = Launch.EAGER, rows: int = 0) -> Step:
    of_slots = tuple(Request(*each) for each in requests)
    padded = max(len(of_slots), rows)
    return Step(mode=Mode.DECODE, requests=of_slots, padded_tokens=padded, tokens_per_request=1, launch=launch)


def verify(*requests: LENGTHS) -> Step:
    of_slots = tuple(Request(*each) for each in requests)
    drafts = of_slots[0].q_len
    padded = drafts * len(of_slots)
    return Step(mode=Mode.TARGET_VERIFY, requests=of_slots, padded_tokens=padded, tokens_per_request=drafts)


def case(*steps: Step, order: PageOrder = PageOrder.IDENTITY, budget: int = 0, shortage: int = 0) -> Case:
    # With this seed, the first request that shares blocks goes on beside the second one.
    serving = Serving(budget=budget, shortage=shortage, seed=1)
    return Case(backend="", geometry=GEOMETRY, steps=steps, pages=Pages(order=order), serving=serving, seed=1)


def draft(*requests: LENGTHS) -> Step:
    """Decodes of a draft model, as many as each request has tokens."""
    of_slots = tuple(Request(*each) for each in requests)
    decodes = of_slots[0].q_len
    padded = decodes * len(of_slots)
    return Step(mode=Mode.DRAFT_DECODE, requests=of_slots, padded_tokens=padded, tokens_per_request=decodes)


def on_engine(release: str, kind: str, served: Case, *, window: int = -1) -> Case:
    """The case on a kind of engine, with its geometry and a window, which latents have none of."""
    return replace(served, backend=f"{release}:{kind}", geometry=replace(ENGINES[kind], window_left=window))
