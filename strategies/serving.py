"""A server's limits, where it schedules the requests of a case itself, and its choices where ranks share their keys."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import PageOrder, Pages, Step, slot_lengths
from attnfuzz.reference.features.classes import LIMITS
from attnfuzz.reference.features.serving import may_be_asynchronous
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.serving import Interleave, Serving, SharedKeys
from attnfuzz.strategies.choices import Choice, WeightedFlag, integer, on
from attnfuzz.strategies.lean import Lean

_QUARTERS: Final = 4

_SERVED_IN_TURNS: Final = 16
"""The most requests that a pool may serve one after another: a step then takes several forwards for each of them."""

# Forwards that all tokens of a case take.
_FORWARDS = Choice((1, 1, 1, 1, 2, 3, 5), lambda count: (f"token budget={LIMITS.of(count - 1)}",))
# Quarters of the pages that more than one sequence needs.
_LACKING = Choice((0, 0, 0, 1, 2, 3, 4, 4), lambda quarters: (f"lacking pages={LIMITS.of(quarters)}",))
_SEEDS = integer(0, 255)
_ASYNCHRONOUS = WeightedFlag(1, 1, ("asynchronous=yes",))
_MORE_RANKS = WeightedFlag(1, 1, ("ranks=four",))
_ALL_TO_ALL = WeightedFlag(1, 1, ("all to all=yes",))
_FEW, _MANY = 2, 4


def draw_serving(
    draw: DrawFn, can: Capability, geometry: Geometry, steps: Sequence[Step], pages: Pages, lean: Lean
) -> Serving:
    """Draw limits: none that takes effect, a budget that cuts prompts, or a pool with too few pages.

    Half of the servers that can be asynchronous are.
    """
    if not can.schedules:
        return Serving()
    lengths = slot_lengths(steps)
    forwards, quarters = draw(_FORWARDS.under(lean)), draw(_LACKING.under(lean))
    counts = {slot: -(-length // geometry.page_size) for slot, length in lengths.items()}
    if max(len(step.requests) for step in steps) > _SERVED_IN_TURNS:
        quarters = min(quarters, _QUARTERS - 1)
    own = _most_in_use(steps, counts) if pages.order is PageOrder.REUSED else sum(counts.values())
    beyond = own - max(counts.values(), default=0) + pages.spare
    return Serving(
        budget=max(1, -(-sum(lengths.values()) // forwards)) if forwards > 1 else 0,
        shortage=max(1, beyond * quarters // _QUARTERS) if quarters and own else 0,
        seed=draw(_SEEDS),
        asynchronous=can.asynchronous and may_be_asynchronous(steps) and draw(_ASYNCHRONOUS.under(lean)),
    )


def _most_in_use(steps: Sequence[Step], counts: Mapping[int, int]) -> int:
    """Count the most pages at the same time, where each sequence has its `counts` from its first step to its last."""
    slots = [{request.slot for request in step.requests} for step in steps]
    return max(
        sum(counts[slot] for slot in set().union(*slots[: index + 1]) & set().union(*slots[index:]))
        for index in range(len(slots))
    )


@cache
def _interleaves(some: tuple[Interleave, ...]) -> Choice[Interleave]:
    return Choice(some, on("interleave"))


def draw_ranks(draw: DrawFn, can: Capability, geometry: Geometry, lean: Lean) -> int:
    """Draw the number of ranks that share keys, each with whole query heads."""
    many = _MANY in can.shared_keys and geometry.q_heads % _MANY == 0
    return _MANY if many and draw(_MORE_RANKS.under(lean)) else _FEW


def draw_shared_keys(draw: DrawFn, can: Capability, ranks: int, steps: Sequence[Step], lean: Lean) -> SharedKeys:
    """Draw the other options of ranks that share keys. Drafts require an interleave of one token."""
    if not can.shared_keys:
        return SharedKeys()
    drafts = any(step.drafts for step in steps)
    return SharedKeys(
        ranks=ranks,
        interleave=Interleave.TOKEN if drafts else draw(_interleaves(can.interleaves).under(lean)),
        all_to_all=draw(_ALL_TO_ALL.under(lean)),
    )
