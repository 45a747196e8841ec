"""The capacity of chunks that a case draws."""

from typing import Any

from attnfuzz.reference.case import Mode, Request, Step
from attnfuzz.strategies.cases import draw_chunk_capacity
from attnfuzz.strategies.lean import NO_LEAN


def test_a_chunk_has_a_token_for_each_of_hundreds_of_requests_without_a_prefix() -> None:
    requests = tuple(Request(slot, 2, 2) for slot in range(531))
    step = Step(mode=Mode.CHUNKED_PREFILL, requests=requests, padded_tokens=1062)

    one_chunk: Any = lambda _: 1  # noqa: E731 - a draw is called with a strategy
    assert draw_chunk_capacity(one_chunk, (step,), NO_LEAN) == 531
