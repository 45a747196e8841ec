"""Naive draws of cases: every field is drawn independently from the same vocabulary, and illegal cases are dropped.

There are two variants, one drawn by Hypothesis and one uniform: the baselines that `benchmarks/coverage.py` compares
the strategies of attnfuzz with.
"""

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import (
    Case,
    Guard,
    KvView,
    Launch,
    Mode,
    Outputs,
    PageOrder,
    Pages,
    QueryView,
    Request,
    Scales,
    Step,
    TableTail,
    Unused,
    ValueFamily,
    Views,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.relation import Relation
from attnfuzz.strategies.supported import head_dims, latents

_KV_HEADS, _GROUPS = (1, 2, 3, 4, 8), (1, 2, 3, 4, 5, 8, 16)
_MOST_STEPS, _MOST_REQUESTS, _MOST_PADDING = 5, 64, 16
_LONGEST_Q, _LONGEST_KV, _WIDEST_WINDOW = 34, 2000, 1023
_FACTORS = (1.0, 0.5, 1.7)
_MOST_COLUMNS, _MOST_SPARE, _LARGEST_SLACK, _LARGEST_CAP = 31, 17, 131072, 50

T = TypeVar("T")


class Source(Protocol):
    """A source of independent draws."""

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""

    def several(self, most: int, one: Callable[["Source"], T]) -> list[T]:
        """Return 1 to `most` draws of `one`."""


class Uniform:
    """A source in which every value is equally likely."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return self._random.randint(low, high)

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return self._random.choice(options)

    def several(self, most: int, one: Callable[[Source], T]) -> list[T]:
        """Return 1 to `most` draws of `one`."""
        return [one(self) for _ in range(self.integer(1, most))]


class Drawn:
    """A source that draws integers, choices and lists with Hypothesis' own strategies."""

    def __init__(self, draw: DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return self._draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return self._draw(st.sampled_from(options))

    def several(self, most: int, one: Callable[[Source], T]) -> list[T]:
        """Return 1 to `most` draws of `one`."""
        return self._draw(st.lists(st.composite(lambda draw: one(Drawn(draw)))(), min_size=1, max_size=most))


def hypothesis_cases(can: Capability, backend: str) -> SearchStrategy[Case]:
    """Return legal flat cases, drawn by Hypothesis."""

    @st.composite
    def flat(draw: DrawFn) -> Case:
        return flat_case(Drawn(draw), can, backend)

    return flat().filter(can.can_run)


def flat_case(source: Source, can: Capability, backend: str) -> Case:
    """Return a case whose fields are independent except for the constraints of their types. It may be illegal."""
    return Case(
        backend=backend,
        geometry=_geometry(source, can),
        steps=_captured_first(source.several(_MOST_STEPS, lambda each: _step(each, can))),
        pages=Pages(
            order=source.pick(tuple(PageOrder)),
            tail=source.pick(tuple(TableTail)),
            spare=source.integer(0, _MOST_SPARE),
            table_slack=source.integer(0, _MOST_COLUMNS),
            behind=source.pick(tuple(Unused)),
            free=source.pick(tuple(Unused)),
        ),
        values=source.pick(tuple(ValueFamily)),
        scales=Scales(
            softmax=source.pick(_FACTORS),
            k=source.pick(_FACTORS) if can.kv_scales else 1.0,
            v=source.pick(_FACTORS) if can.kv_scales else 1.0,
        ),
        views=Views(
            query=source.pick(tuple(QueryView)) if len(can.query_views) > 1 else can.query_views[0],
            kv=source.pick(can.kv_views) if len(can.kv_views) > 1 else KvView.SEPARATE,
            table_gap=source.integer(0, _MOST_COLUMNS),
        ),
        workspace=source.pick(tuple(Workspace)),
        outputs=source.pick(tuple(Outputs)),
        max_len_slack=source.integer(0, _LARGEST_SLACK),
        chunk_capacity=source.integer(1, _LONGEST_KV),
        guard=source.pick(tuple(Guard)),
        seed=source.integer(0, 1 << 32),
        relation=source.pick((None, *Relation)),
    )


def _geometry(source: Source, can: Capability) -> Geometry:
    latent = source.pick(latents(can))
    kv_heads = 1 if latent else source.pick(_KV_HEADS)
    head_dim = latent.rank + latent.rope if latent else source.pick(head_dims(can))
    value_dim = latent.rank if latent else source.pick(head_dims(can)) if can.unequal_head_dims else head_dim
    dtype = source.pick(can.dtypes)
    return Geometry(
        q_heads=kv_heads * source.pick(_GROUPS),
        kv_heads=kv_heads,
        head_dim_qk=head_dim,
        head_dim_vo=value_dim,
        page_size=source.pick(can.page_sizes),
        dtype=dtype,
        kv_dtype=source.pick((dtype, DType.FLOAT8_E4M3)) if can.fp8_kv else dtype,
        kv_layout=source.pick(can.layouts),
        window_left=source.integer(-1, _WIDEST_WINDOW) if can.windows else -1,
        sinks=bool(source.integer(0, int(can.sinks))),
        soft_cap=float(source.integer(0, _LARGEST_CAP * can.soft_cap)),
        latent=latent,
    )


def _step(source: Source, can: Capability) -> Step:
    mode = source.pick(can.modes)
    stride = 1 if mode is Mode.DECODE else source.integer(2, 16) if mode.speculative else 0
    lengths = source.several(_MOST_REQUESTS, lambda each: (_q_len(each, mode, stride), each.integer(0, _LONGEST_KV)))
    slots = list(range(len(lengths)))
    random.Random(source.integer(0, 255)).shuffle(slots)
    requests = tuple(Request(slot, *each) for slot, each in zip(slots, lengths, strict=True))
    launch = source.pick((Launch.EAGER, Launch.REPLAY)) if mode in can.capturable else Launch.EAGER
    more = source.integer(0, _MOST_PADDING) if can.padding else 0
    whole = mode.uniform or launch is Launch.REPLAY
    tokens = (len(requests) + more) * stride if whole else sum(q_len for q_len, _ in lengths) + more
    return Step(mode=mode, requests=requests, padded_tokens=tokens, tokens_per_request=stride, launch=launch)


def _q_len(source: Source, mode: Mode, stride: int) -> int:
    if mode is Mode.DRAFT_EXTEND:
        return source.integer(1, stride)
    return stride or source.integer(0, _LONGEST_Q)


def _captured_first(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps, preceded by the captures that the replays among them need."""
    captures = {
        msgspec.structs.replace(step, requests=(), launch=Launch.CAPTURE): None
        for step in steps
        if step.launch is Launch.REPLAY
    }
    return (*captures, *steps)
