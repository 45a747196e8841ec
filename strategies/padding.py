"""What servers add to a batch after it is planned: rows up to a data-parallel group's size, or up to a graph's bucket.

Modelled on SGLang's `prepare_mlp_sync_batch`, which aligns every rank's number of tokens to the size of its attention
group, and then raises it to the maximum over the data-parallel group (MAX_LEN) or leaves each rank its own (SUM_LEN).
"""

import math
from collections.abc import Iterable
from functools import cache

import msgspec
from hypothesis.strategies import DrawFn

from attnfuzz.reference.case import Step
from attnfuzz.strategies.choices import Choice
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.scope import Scope

# Ranks that share one attention layer.
_ATTENTION_GROUPS = (*(1,) * 5, 2, 4, 8, 16)
# Padding beyond this is often more than the batch.
_FEW = 2
# How many requests (uniform modes) or tokens (ragged ones) the busiest other rank has more than this one.
_MORE = (*(0,) * 9, 1, 1, 2, 2, 3, 4, 6, 9, 16)


def pad_step(step: Step, *, others: int, attention_group: int) -> Step:
    """An eager step as it is after the group agreed on a size.

    `others` is what the busiest rank of the group has, in requests for uniform modes and in tokens for ragged ones (0
    under SUM_LEN). A uniform query is rounded up to whole requests as well, or it could not be seen as a batch.
    """
    if step.mode.uniform:
        tokens = max(len(step.requests), others) * step.tokens_per_request
        unit = math.lcm(attention_group, step.tokens_per_request)
    else:
        tokens, unit = max(step.tokens, others), attention_group
    return msgspec.structs.replace(step, padded_tokens=-(-tokens // unit) * unit)


def bucket_of(batch: int, buckets: Iterable[int]) -> int | None:
    """The smallest bucket that holds a batch; None if none does."""
    return min((bucket for bucket in buckets if bucket >= batch), default=None)


def draw_attention_group(draw: DrawFn, scope: Scope, lean: Lean) -> int:
    """The number of ranks that share an attention layer: a batch is aligned to it."""
    return draw(_up_to(scope.bucket, _ATTENTION_GROUPS).under(lean))


def draw_padding(draw: DrawFn, step: Step, attention_group: int, scope: Scope, lean: Lean) -> Step:
    """An eager step, padded as its group asks."""
    own = len(step.requests) if step.mode.uniform else step.tokens
    more = draw(_up_to(scope.bucket, _MORE).under(lean))
    return pad_step(step, others=own + more, attention_group=attention_group)


@cache
def _up_to(most: int, options: tuple[int, ...]) -> Choice[int]:
    """One of the options that are not above `most`; what is not the least of them pads."""
    least = options[0]

    def shows(option: int) -> tuple[str, ...]:
        few = ("padding=tokens", "padding=fewer requests than real") if option > least else ("padding=none",)
        return (*few, "padding=as many requests, or more") if option > _FEW else few

    return Choice(tuple(option for option in options if option <= most), shows)
