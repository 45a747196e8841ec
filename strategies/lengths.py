"""Options for the lengths of requests: every length below a ceiling, with more weight on the short and the critical."""

from enum import Enum, auto
from functools import cache

from attnfuzz.strategies.choices import Choice
from attnfuzz.strategies.coverage.classes import KEYS, QUERIES, kv_length_class

# A length of 0 gets one draw in this many where nothing asks for more.
_ONE_EMPTY_IN = 10


class Emptiness(Enum):
    """How many KV lengths of a batch are 0: now and then one, most, or all of them."""

    SOME = auto()
    MOST = auto()
    ALL = auto()


def _kv_options(page_size: int, ceiling: int, emptiness: Emptiness, *, flat: bool) -> tuple[int, ...]:
    """KV lengths from 0 to `ceiling` in ascending order, each as often as it should be drawn.

    Without `flat`, a length n has a weight of about 1 / n. Lengths at a page's edge weigh more, whatever they are.
    """
    if emptiness is Emptiness.ALL:
        return (0,)
    weights = {length: 1 if flat else max(1, 64 // (length + 2)) for length in range(1, ceiling + 1)}
    edge = max(1, sum(weights.values()) // 32)
    for length in (1, page_size - 1, page_size, page_size + 1, 2 * page_size, 2 * page_size + 1):
        if length in weights:
            weights[length] += edge
    others = sum(weights.values())
    empty = 3 * others if emptiness is Emptiness.MOST else others // (_ONE_EMPTY_IN - 1)
    return (0,) * max(1, empty) + tuple(length for length, weight in weights.items() for _ in range(weight))


@cache
def kv_lengths(page_size: int, ceiling: int, emptiness: Emptiness, *, flat: bool) -> Choice[int]:
    """A KV length of `_kv_options`. It shows what it is as a KV length, and what it is as that of a prefix."""

    def shows(length: int) -> tuple[str, ...]:
        as_prefix = ("without keys=some", "prefix=none", "chunks=no prefix") if length == 0 else ("prefix=yes",)
        return f"kv len={kv_length_class(length, page_size)}", f"longest kv={KEYS.of(length)}", *as_prefix

    return Choice(_kv_options(page_size, ceiling, emptiness, flat=flat), shows)


@cache
def new_tokens(ceiling: int) -> Choice[int]:
    """The number of new tokens of a request of a prefill: one of `q_options`."""

    def shows(length: int) -> tuple[str, ...]:
        return (f"longest q={QUERIES.of(length)}",) if length else ("q lens=an idle request",)

    return Choice(q_options(ceiling), shows)


@cache
def q_options(ceiling: int) -> tuple[int, ...]:
    """New tokens of a prefill: 1 to `ceiling` in ascending order, short ones more often, and at times none at all."""
    weights = {length: max(1, 16 // length) for length in range(1, ceiling + 1)}
    some = tuple(length for length, weight in weights.items() for _ in range(weight))
    return some + (0,) * (len(some) // 16 + 1)
