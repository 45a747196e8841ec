"""Changes that servers make to a planned step: launching it as a graph, and padding it.

A step is padded to the size of a graph or of its group. This is modelled on SGLang's `prepare_mlp_sync_batch`, which
aligns every rank's number of tokens to the size of its attention group, and then raises it to the maximum over the
data-parallel group (MAX_LEN) or leaves each rank its own (SUM_LEN).
"""

import math
from collections.abc import Iterable
from functools import cache

import msgspec
from hypothesis.strategies import DrawFn

from attnfuzz.reference.case import Launch, Mode, Step
from attnfuzz.strategies.choices import Choice, WeightedFlag, odds
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.scope import Scope

# Number of ranks that share one attention layer.
_ATTENTION_GROUPS = (*(1,) * 5, 2, 4, 8, 16)
# More padding than this is often more than the batch.
_FEW = 2
# Requests (uniform modes) or tokens (ragged ones) that the busiest other rank has in addition to this one's.
_MORE = (*(0,) * 9, 1, 1, 2, 2, 3, 4, 6, 9, 16)


def pad_step(step: Step, *, others: int, attention_group: int) -> Step:
    """Pad an eager step to the size that its group agreed on.

    `others` is the size of the group's busiest rank, in requests for uniform modes and in tokens for ragged ones (0
    under SUM_LEN). A uniform query is also rounded up to whole requests, since it has to be viewed as a batch.
    """
    if step.mode.uniform:
        tokens = max(len(step.requests), others) * step.tokens_per_request
        unit = math.lcm(attention_group, step.tokens_per_request)
    else:
        tokens, unit = max(step.tokens, others), attention_group
    return msgspec.structs.replace(step, padded_tokens=-(-tokens // unit) * unit)


def bucket_of(batch: int, buckets: Iterable[int]) -> int | None:
    """Return the smallest bucket that holds a batch, or None."""
    return min((bucket for bucket in buckets if bucket >= batch), default=None)


def draw_attention_group(draw: DrawFn, scope: Scope, lean: Lean) -> int:
    """Draw the number of ranks that share an attention layer, to which a batch is aligned."""
    return draw(_up_to(scope.bucket, _ATTENTION_GROUPS).under(lean))


def draw_padding(draw: DrawFn, step: Step, attention_group: int, scope: Scope, lean: Lean) -> Step:
    """Draw the padding of an eager step within its group, or none if it would exceed the maximum rows of a step."""
    own = len(step.requests) if step.mode.uniform else step.tokens
    more = draw(_up_to(scope.bucket, _MORE).under(lean))
    padded = pad_step(step, others=own + more, attention_group=attention_group)
    return padded if padded.padded_tokens <= scope.rows else step


@cache
def _up_to(most: int, options: tuple[int, ...]) -> Choice[int]:
    """Return a choice of the options up to `most`; all but the smallest of them pad."""
    least = options[0]

    def shows(option: int) -> tuple[str, ...]:
        few = ("padding=tokens", "padding=fewer requests than real") if option > least else ("padding=none",)
        return (*few, "padding=as many requests, or more") if option > _FEW else few

    return Choice(tuple(option for option in options if option <= most), shows)


# The batch sizes that servers capture, the most common list first.
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
    """Draw launches: most of the steps in `modes` become replays of graphs that are captured before.

    A graph is captured before all steps, as when servers start, or just before its first replay. Each batch uses the
    smallest bucket that holds it, or all batches of a mode use the bucket that holds the largest one.
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
        most = scope.rows // step.tokens_per_request
        capture, replay = _graphed(step, largest[step.mode] if shared else len(step.requests), buckets, most)
        if capture not in captures:
            captures.append(capture)
            if late:
                launched.append(capture)
        launched.append(replay)
    return tuple(launched) if late else (*captures, *launched)


def _graphed(step: Step, batch: int, buckets: tuple[int, ...], most: int) -> tuple[Step, Step]:
    """Return the capture and the replay of a step, in the bucket for this batch size, of up to `most` requests.

    If the configured buckets are too small, a common one is used.
    """
    fitting = (min(bucket, most) for bucket in (bucket_of(batch, buckets), bucket_of(batch, _BUCKETS)) if bucket)
    bucket = next(fitting, batch)
    replay = msgspec.structs.replace(step, padded_tokens=bucket * step.tokens_per_request, launch=Launch.REPLAY)
    return msgspec.structs.replace(replay, requests=(), launch=Launch.CAPTURE), replay
