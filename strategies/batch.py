"""Drawing ragged batches: the query and KV lengths of the requests of one step."""

import random
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, lru_cache
from itertools import accumulate

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.features.classes import ACCEPTED, BATCHES, KEYS, KV_LENGTHS, QUERIES
from attnfuzz.strategies.choices import Choice, choice, integer, odds
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.scope import Scope

# Queries or keys in the smallest common tile, and the weight of lengths at its edges.
_TILE, _AT_AN_EDGE = 64, 6
# With Emptiness.SOME, one draw in this many is a length of 0.
_ONE_EMPTY_IN = 10


class Emptiness(Enum):
    """The share of KV lengths of 0 in a batch: occasionally one, most, or all."""

    SOME = auto()
    MOST = auto()
    ALL = auto()


def _kv_options(page_size: int, ceiling: int, emptiness: Emptiness, *, flat: bool) -> tuple[int, ...]:
    """Return KV lengths from 0 to `ceiling` in ascending order, repeated by weight.

    Without `flat`, a length n has a weight of about 1 / n. Lengths at the edges of pages and of a kernel's tiles always
    have a higher weight.
    """
    if emptiness is Emptiness.ALL:
        return (0,)
    weights = {length: 1 if flat else max(1, 64 // (length + 2)) for length in range(1, ceiling + 1)}
    edge = max(1, sum(weights.values()) // 32)
    for length in (1, page_size - 1, page_size, page_size + 1, 2 * page_size, 2 * page_size + 1):
        if length in weights:
            weights[length] += edge
    _weigh_tiles(weights)
    others = sum(weights.values())
    empty = 3 * others if emptiness is Emptiness.MOST else others // (_ONE_EMPTY_IN - 1)
    return (0,) * max(1, empty) + tuple(length for length, weight in weights.items() for _ in range(weight))


def _weigh_tiles(weights: dict[int, int]) -> None:
    """Raise the weights of lengths from 1 on that are at the edges of tiles."""
    for edge in range(_TILE, len(weights) + 2, _TILE):
        for length in (edge - 1, edge, edge + 1):
            if length in weights:
                weights[length] += _AT_AN_EDGE


@cache
def kv_lengths(page_size: int, ceiling: int, emptiness: Emptiness, *, flat: bool) -> Choice[int]:
    """Return a choice of `_kv_options`, which shows the features of a KV length and of a prefix's length."""

    def shows(length: int) -> tuple[str, ...]:
        as_prefix = ("without keys=some", "prefix=none", "chunks=no prefix") if length == 0 else ("prefix=yes",)
        return f"kv len={KV_LENGTHS.of(length, page_size)}", f"longest kv={KEYS.of(length)}", *as_prefix

    return Choice(_kv_options(page_size, ceiling, emptiness, flat=flat), shows)


@cache
def new_tokens(ceiling: int) -> Choice[int]:
    """Return a choice of the number of new tokens of a prefill's request."""

    def shows(length: int) -> tuple[str, ...]:
        return (f"longest q={QUERIES.of(length)}",) if length else ("q lens=an idle request",)

    return Choice(q_options(ceiling), shows)


@cache
def q_options(ceiling: int) -> tuple[int, ...]:
    """Return numbers of new tokens of a prefill: 1 to `ceiling` in ascending order, sometimes 0.

    Short ones have a higher weight, and so do lengths at the edges of a kernel's tiles.
    """
    weights = {length: max(1, 16 // length) for length in range(1, ceiling + 1)}
    _weigh_tiles(weights)
    some = tuple(length for length, weight in weights.items() for _ in range(weight))
    return some + (0,) * (len(some) // 16 + 1)


Lengths = tuple[int, int]


def _shown_by_style(style: tuple[Emptiness, bool]) -> tuple[str, ...]:
    emptiness, total = style
    if emptiness is Emptiness.ALL:
        return "without keys=all", "longest kv=0"
    if emptiness is Emptiness.MOST:
        return "without keys=some", "kv len=0"
    if not total:
        return "prefix=yes", "prefix=none"
    return ("prefix=fewer keys than queries", *(f"kv len={value}" for value in KV_LENGTHS.names if value != "0"))


# (which KV lengths are 0, whether a drawn length is the total). A total may be shorter than the query. Otherwise, the
# drawn length counts the keys before the new tokens, as in servers, and the new tokens are added to it.
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
# Whether one request is far longer than the others.
_HAS_OUTLIER = odds(2, 1)


@dataclass(frozen=True)
class Setting:
    """Settings shared by the steps of a case. `stride` is the number of draft tokens of the speculative modes."""

    can: Capability
    page_size: int
    scope: Scope
    stride: int
    lean: Lean = NO_LEAN

    def tokens_per_request(self, mode: Mode) -> int:
        """Return the query stride of a step of this mode."""
        return mode.stride(self.stride)

    def prefix_lengths(self) -> SearchStrategy[int]:
        """Return a strategy of the lengths of a request's prefix, before its new tokens."""
        return kv_lengths(self.page_size, self.scope.kv_len, Emptiness.SOME, flat=self.scope.flat).under(self.lean)


def draw_batch(draw: DrawFn, setting: Setting, mode: Mode) -> tuple[Lengths, ...]:
    """Draw (q_len, kv_len) of each request of a step: a few one by one, and possibly many more from a seed."""
    stride = setting.tokens_per_request(mode)
    scope, lean = setting.scope.of_batch(stride if mode.speculative else 1), setting.lean
    emptiness, total = draw(_STYLES.under(lean))
    q_choice = _q_lengths(mode, stride, scope.q_len)
    kv_choice = kv_lengths(setting.page_size, scope.kv_len, emptiness, flat=scope.flat)
    least, most = _draw_size(draw, lean, scope)
    pairs = draw(
        _pairs(q_choice.under(lean), kv_choice.under(lean), min(least, scope.requests), min(most, scope.requests))
    )
    if scope.seeded_requests:
        more = draw(integer(max(0, least - len(pairs)), min(scope.seeded_requests, most - len(pairs))))
        source = random.Random(draw(_SEEDS))
        q, kv = q_choice.weighed(lean), kv_choice.weighed(lean)
        pairs = pairs + [(source.choice(q), source.choice(kv)) for _ in range(more)]
    if scope.outlier_kv_len and emptiness is not Emptiness.ALL and draw(_HAS_OUTLIER):
        at = draw(integer(0, len(pairs) - 1))
        outlier = kv_lengths(setting.page_size, scope.outlier_kv_len, Emptiness.SOME, flat=True).under(lean)
        pairs[at] = (pairs[at][0], draw(outlier))
    pairs = _fitting(pairs, scope.rows)
    if not any(q_len for q_len, _ in pairs):
        pairs[0] = (1, pairs[0][1])
    return tuple((q_len, _keys(setting, mode, q_len, drawn, total=total)) for q_len, drawn in pairs)


def _fitting(pairs: list[Lengths], rows: int) -> list[Lengths]:
    """Return the first requests, as many as have at most `rows` queries together."""
    ends = accumulate(q_len for q_len, _ in pairs)
    return [each for each, end in zip(pairs, ends, strict=True) if end <= rows]


def _draw_size(draw: DrawFn, lean: Lean, scope: Scope) -> tuple[int, int]:
    """Draw bounds on the number of requests. If the lean has batch sizes, half of the draws use those."""
    largest = scope.requests + scope.seeded_requests
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
    """Return a strategy of `least` to `most` pairs (query length, drawn KV length)."""
    return st.lists(st.tuples(q, kv), min_size=least, max_size=most)


@cache
def _q_lengths(mode: Mode, stride: int, ceiling: int) -> Choice[int]:
    if not mode.speculative:
        return new_tokens(ceiling)
    if mode is not Mode.DRAFT_EXTEND:
        return Choice((stride,), lambda _: ())

    def shows(accepted: int) -> tuple[str, ...]:
        return f"accepted={ACCEPTED.of(accepted, stride)}", f"longest q={QUERIES.of(accepted)}"

    return Choice(tuple(range(1, stride + 1)), shows)


def _keys(setting: Setting, mode: Mode, q_len: int, drawn: int, *, total: bool) -> int:
    """Return the KV length: the drawn length if that is the total and supported, else it plus the new tokens.

    A prefill with latents always attends to its new tokens, and a draft model decodes after a prefix.
    """
    if mode is Mode.DRAFT_DECODE:
        return drawn if total and drawn > q_len else max(drawn, 1) + q_len
    if not total or (setting.can.latent and not mode.speculative):
        return drawn + q_len
    supported = drawn >= q_len or (setting.can.kv_shorter_than_q if drawn else setting.can.takes_empty_kv)
    return drawn if supported else drawn + q_len
