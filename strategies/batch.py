"""Ragged batches: the query and KV lengths of the requests of one step."""

import random
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.strategies.choices import choice, integer
from attnfuzz.strategies.lengths import Emptiness, kv_lengths, kv_options, q_options
from attnfuzz.strategies.scope import Scope

Lengths = tuple[int, int]

# (which KV lengths are 0, whether a drawn length is the total). If it is not, it counts what lies before the new tokens
# and they are added to it, as servers do; a total may be shorter than the query.
_STYLES = choice(
    (
        *((Emptiness.SOME, False),) * 7,
        *((Emptiness.SOME, True),) * 7,
        (Emptiness.MOST, True),
        (Emptiness.ALL, True),
    )
)
_SEEDS = integer(0, 65535)


@dataclass(frozen=True)
class Setting:
    """What the steps of a case have in common. `stride` is the number of draft tokens of the speculative modes."""

    can: Capability
    page_size: int
    scope: Scope
    stride: int

    def tokens_per_request(self, mode: Mode) -> int:
        """The query stride of a step of this mode."""
        if mode is Mode.DECODE:
            return 1
        return self.stride if mode.speculative else 0

    def prefix_lengths(self) -> SearchStrategy[int]:
        """The length of what a request has before its new tokens."""
        return kv_lengths(self.page_size, self.scope.kv_len, Emptiness.SOME, flat=self.scope.flat)


def draw_batch(draw: DrawFn, setting: Setting, mode: Mode) -> tuple[Lengths, ...]:
    """(q_len, kv_len) of each request of one step: a few drawn one by one, and maybe a crowd that comes from a seed."""
    scope = setting.scope
    emptiness, total = draw(_STYLES)
    q_strategy = _q_lengths(mode, setting.stride, scope.q_len)
    kv_strategy = kv_lengths(setting.page_size, scope.kv_len, emptiness, flat=scope.flat)
    pairs = draw(_pairs(q_strategy, kv_strategy, scope.requests))
    if scope.crowd:
        crowd = draw(integer(0, scope.crowd))
        source = random.Random(draw(_SEEDS))
        q = _q_options(mode, setting.stride, scope.q_len)
        kv = kv_options(setting.page_size, scope.kv_len, emptiness, flat=scope.flat)
        pairs = pairs + [(source.choice(q), source.choice(kv)) for _ in range(crowd)]
    if not any(q_len for q_len, _ in pairs):
        pairs[0] = (1, pairs[0][1])
    return tuple((q_len, _keys(setting, mode, q_len, drawn, total=total)) for q_len, drawn in pairs)


@cache
def _pairs(q: SearchStrategy[int], kv: SearchStrategy[int], most: int) -> SearchStrategy[list[Lengths]]:
    """(query length, drawn KV length) of 1 to `most` requests."""
    return st.lists(st.tuples(q, kv), min_size=1, max_size=most)


@cache
def _q_lengths(mode: Mode, stride: int, ceiling: int) -> SearchStrategy[int]:
    return choice(_q_options(mode, stride, ceiling))


def _q_options(mode: Mode, stride: int, ceiling: int) -> tuple[int, ...]:
    if mode is Mode.DECODE:
        return (1,)
    if mode is Mode.DRAFT_EXTEND:
        return tuple(range(1, stride + 1))
    return (stride,) if mode.uniform else q_options(ceiling)


def _keys(setting: Setting, mode: Mode, q_len: int, drawn: int, *, total: bool) -> int:
    """The KV length that a drawn one stands for: itself as a total, where that is supported, else with the new tokens.

    A prefill with latents attends to its new tokens in any case.
    """
    if not total or (setting.can.latent and not mode.speculative):
        return drawn + q_len
    supported = drawn >= q_len or (setting.can.kv_shorter_than_q if drawn else setting.can.empty_kv)
    return drawn if supported else drawn + q_len
