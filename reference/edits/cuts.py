"""The order of shrinking: shorter tuples and lower numbers."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Launch, Mode, Request, Step

T = TypeVar("T")


def lower(value: int, floor: int) -> Iterator[int]:
    """Yield `floor`, then values closer and closer to `value`, up to `value - 1`."""
    distance = value - floor
    while distance > 0:
        yield value - distance
        distance //= 2


def without_blocks(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """Yield `items` without one of its halves, one of its quarters, and so on to single items, the last ones first."""
    size = (len(items) + 1) // 2
    while size and items:
        for end in range(len(items), 0, -size):
            yield items[: max(0, end - size)] + items[end:]
        size //= 2


def with_step(case: Case, index: int, *steps: Step) -> Case:
    """Return `case` with `steps` instead of one step."""
    return replace(case, steps=(*case.steps[:index], *steps, *case.steps[index + 1 :]))


def with_requests(step: Step, requests: tuple[Request, ...]) -> Step:
    """Return `step` with other requests, and as much padding as before. A graph keeps its bucket."""
    if step.launch is not Launch.EAGER:
        return replace(step, requests=requests)
    changed = replace(step, requests=requests)
    return replace(changed, padded_tokens=changed.tokens + step.padded_tokens - step.tokens)


def with_q_len(request: Request, q_len: int) -> Request:
    """Return `request` with another number of query tokens after the same prefix. Without a prefix, it has few keys."""
    if request.kv_len >= request.q_len:
        return replace(request, q_len=q_len, kv_len=request.kv_len - request.q_len + q_len if request.kv_len else 0)
    # Fewer keys than queries, or none: this is preserved, if a key is left.
    return replace(request, q_len=q_len, kv_len=min(request.kv_len, max(1, q_len - 1)))


def map_requests(case: Case, change: Callable[[Request], Request]) -> Case:
    """Return `case` with every request changed in the same way."""
    steps = tuple(with_requests(step, tuple(change(request) for request in step.requests)) for step in case.steps)
    return replace(case, steps=steps)


def tidy(case: Case) -> Case:
    """Return `case` without idle steps, captures that are not replayed, and gaps between the numbers of sequences."""
    wanted = {graph_of(step) for step in case.steps if step.launch is Launch.REPLAY and step.requests}
    steps = [
        step for step in case.steps if (graph_of(step) in wanted if step.launch is Launch.CAPTURE else step.tokens > 0)
    ]
    slots = sorted({request.slot for step in steps for request in step.requests})
    names = {slot: name for name, slot in enumerate(slots)}
    renamed = (
        replace(step, requests=tuple(replace(request, slot=names[request.slot]) for request in step.requests))
        for step in steps
    )
    return replace(case, steps=tuple(renamed))


def graph_of(step: Step) -> tuple[Mode, int, int]:
    """Return the key of a step's graph."""
    return step.mode, step.padded_tokens, step.tokens_per_request
