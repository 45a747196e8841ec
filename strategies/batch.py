"""Ragged batches: the query and KV lengths of the requests of one step."""

import random
from dataclasses import dataclass
from functools import cache, lru_cache

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.strategies.choices import Choice, choice, integer, odds
from attnfuzz.strategies.coverage.classes import BATCHES, KV_LENGTHS, QUERIES, accepted_class
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.lengths import Emptiness, kv_lengths, new_tokens
from attnfuzz.strategies.scope import Scope

Lengths = tuple[int, int]


def _shown_by_style(style: tuple[Emptiness, bool]) -> tuple[str, ...]:
    emptiness, total = style
    if emptiness is Emptiness.ALL:
        return "without keys=all", "longest kv=0"
    if emptiness is Emptiness.MOST:
        return "without keys=some", "kv len=0"
    if not total:
        return "prefix=yes", "prefix=none"
    return ("prefix=fewer keys than queries", *(f"kv len={value}" for value in KV_LENGTHS if value != "0"))


# (which KV lengths are 0, whether a drawn length is the total). If it is not, it counts what lies before the new tokens
# and they are added to it, as servers do; a total may be shorter than the query.
_STYLES = Choice(
    (
        *((Emptiness.SOME, False),) * 7,
        *((Emptiness.SOME, True),) * 7,
        (Emptiness.MOST, True),
        (Emptiness.ALL, True),
    ),
    _shown_by_style,
)
_SEEDS = integer(0, 65535)
# Whether one request of many is far longer than the others.
_TOWERS = odds(2, 1)


@dataclass(frozen=True)
class Setting:
    """What the steps of a case have in common. `stride` is the number of draft tokens of the speculative modes."""

    can: Capability
    page_size: int
    scope: Scope
    stride: int
    lean: Lean = NO_LEAN

    def tokens_per_request(self, mode: Mode) -> int:
        """The query stride of a step of this mode."""
        if mode is Mode.DECODE:
            return 1
        return self.stride if mode.speculative else 0

    def prefix_lengths(self) -> SearchStrategy[int]:
        """The length of what a request has before its new tokens."""
        return kv_lengths(self.page_size, self.scope.kv_len, Emptiness.SOME, flat=self.scope.flat).under(self.lean)


def draw_batch(draw: DrawFn, setting: Setting, mode: Mode) -> tuple[Lengths, ...]:
    """(q_len, kv_len) of each request of one step: a few drawn one by one, and maybe a crowd that comes from a seed."""
    scope, lean = setting.scope, setting.lean
    emptiness, total = draw(_STYLES.under(lean))
    q_choice = _q_lengths(mode, setting.stride, scope.q_len)
    kv_choice = kv_lengths(setting.page_size, scope.kv_len, emptiness, flat=scope.flat)
    least, most = _draw_size(draw, lean, scope)
    pairs = draw(
        _pairs(q_choice.under(lean), kv_choice.under(lean), min(least, scope.requests), min(most, scope.requests))
    )
    if scope.crowd:
        crowd = draw(integer(max(0, least - len(pairs)), min(scope.crowd, most - len(pairs))))
        source = random.Random(draw(_SEEDS))
        q, kv = q_choice.weighed(lean), kv_choice.weighed(lean)
        pairs = pairs + [(source.choice(q), source.choice(kv)) for _ in range(crowd)]
    if scope.tallest and emptiness is not Emptiness.ALL and draw(_TOWERS):
        at = draw(integer(0, len(pairs) - 1))
        tall = kv_lengths(setting.page_size, scope.tallest, Emptiness.SOME, flat=True).under(lean)
        pairs[at] = (pairs[at][0], draw(tall))
    if not any(q_len for q_len, _ in pairs):
        pairs[0] = (1, pairs[0][1])
    return tuple((q_len, _keys(setting, mode, q_len, drawn, total=total)) for q_len, drawn in pairs)


def _draw_size(draw: DrawFn, lean: Lean, scope: Scope) -> tuple[int, int]:
    """How few and how many requests a batch may have; what a lean favours in half of the draws under it."""
    largest = scope.requests + scope.crowd
    whole = (1, largest)
    favoured = []
    for name in lean.values("batch"):
        low, high = BATCHES.bounds(name)
        if low <= largest:
            favoured.append((max(1, low), min(largest, high or largest)))
    return draw(_one_of((whole,) * len(favoured) + tuple(favoured))) if favoured else whole


@lru_cache(256)
def _one_of(bounds: tuple[tuple[int, int], ...]) -> SearchStrategy[tuple[int, int]]:
    return choice(bounds)


@lru_cache(1024)
def _pairs(q: SearchStrategy[int], kv: SearchStrategy[int], least: int, most: int) -> SearchStrategy[list[Lengths]]:
    """(query length, drawn KV length) of `least` to `most` requests."""
    return st.lists(st.tuples(q, kv), min_size=least, max_size=most)


@cache
def _q_lengths(mode: Mode, stride: int, ceiling: int) -> Choice[int]:
    if not mode.speculative:
        return new_tokens(ceiling)
    if mode is not Mode.DRAFT_EXTEND:
        return Choice((1 if mode is Mode.DECODE else stride,), lambda _: ())

    def shows(accepted: int) -> tuple[str, ...]:
        return f"accepted={accepted_class(accepted, stride)}", f"longest q={QUERIES.of(accepted)}"

    return Choice(tuple(range(1, stride + 1)), shows)


def _keys(setting: Setting, mode: Mode, q_len: int, drawn: int, *, total: bool) -> int:
    """The KV length that a drawn one stands for: itself as a total, where that is supported, else with the new tokens.

    A prefill with latents attends to its new tokens in any case.
    """
    if not total or (setting.can.latent and not mode.speculative):
        return drawn + q_len
    supported = drawn >= q_len or (setting.can.kv_shorter_than_q if drawn else setting.can.empty_kv)
    return drawn if supported else drawn + q_len
