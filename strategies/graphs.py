"""Which steps run as graphs, in which buckets, and when these were captured."""

import msgspec
from hypothesis.strategies import DrawFn

from attnfuzz.reference.case import Launch, Mode, Step
from attnfuzz.strategies.choices import Choice, WeightedFlag, odds
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.padding import bucket_of
from attnfuzz.strategies.scope import Scope

# The batch sizes that servers capture, the usual list first.
_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_CONFIGURED = Choice(
    (*(_BUCKETS,) * 4, _BUCKETS[1::2], _BUCKETS[2::2], (4, 16, 64), (8, 24, 48), (64,)),
    lambda buckets: () if buckets is _BUCKETS else ("padding=as many requests, or more",),
)
_SHARED = WeightedFlag(1, 1, ("launch=replayed again", "padding=fewer requests than real"))
_LATE = WeightedFlag(1, 1, ("launch=captured late",))
_MOSTLY = odds(1, 5)


def draw_launches(
    draw: DrawFn, steps: tuple[Step, ...], modes: tuple[Mode, ...], scope: Scope, lean: Lean
) -> tuple[Step, ...]:
    """The steps, most of those in `modes` as replays of graphs that are captured before.

    A graph is captured before everything else, as servers do when they start, or just before it is first replayed.
    Each batch goes to the smallest bucket that holds it, or all of a mode to the one that holds the largest.
    """
    buckets = tuple(bucket for bucket in draw(_CONFIGURED.under(lean)) if bucket <= scope.bucket)
    shared, late = (draw(_SHARED.under(lean)), draw(_LATE.under(lean))) if len(steps) > 1 else (False, False)
    largest = {step.mode: max(len(other.requests) for other in steps if other.mode is step.mode) for step in steps}
    captures: list[Step] = []
    launched: list[Step] = []
    for step in steps:
        if step.mode not in modes or not draw(_MOSTLY):
            launched.append(step)
            continue
        capture, replay = _graphed(step, largest[step.mode] if shared else len(step.requests), buckets)
        if capture not in captures:
            captures.append(capture)
            if late:
                launched.append(capture)
        launched.append(replay)
    return tuple(launched) if late else (*captures, *launched)


def _graphed(step: Step, batch: int, buckets: tuple[int, ...]) -> tuple[Step, Step]:
    """The capture that a step needs, and its replay, in the bucket of a batch of that size.

    If the configured buckets are too small, it is one of the usual ones.
    """
    bucket = bucket_of(batch, buckets) or bucket_of(batch, _BUCKETS) or batch
    replay = msgspec.structs.replace(step, padded_tokens=bucket * step.tokens_per_request, launch=Launch.REPLAY)
    return msgspec.structs.replace(replay, requests=(), launch=Launch.CAPTURE), replay
