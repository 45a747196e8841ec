"""How many prefix tokens a chunked prefill attends to at once: from one chunk for all to many small ones."""

from hypothesis.strategies import DrawFn

from attnfuzz.reference.case import Mode, Step
from attnfuzz.strategies.choices import Choice
from attnfuzz.strategies.lean import Lean

_DEFAULT = 256
# Chunks of the longest prefix.
_CHUNKS = Choice(
    (1, 1, 2, 2, 3, 4, 5, 7, 12),
    lambda count: ("chunks=several", "chunks=one request ends early") if count > 1 else ("chunks=one",),
)


def draw_chunk_capacity(draw: DrawFn, steps: tuple[Step, ...], lean: Lean) -> int:
    """A capacity that cuts the longest prefix of the chunked steps into a few chunks, and is enough for every step."""
    chunked = [step for step in steps if step.mode is Mode.CHUNKED_PREFILL]
    if not chunked:
        return _DEFAULT
    batch = max(len(step.requests) for step in chunked)
    longest = max(request.kv_len - request.q_len for step in chunked for request in step.requests)
    count = draw(_CHUNKS.under(lean))
    if count == 1 and longest * batch <= _DEFAULT:
        return _DEFAULT
    return max(1, -(-longest // count)) * batch
