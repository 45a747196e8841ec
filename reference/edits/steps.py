"""Edits that drop steps, requests, graphs and padding."""

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Launch, Step
from attnfuzz.reference.edits.cuts import graph_of, lower, tidy, with_requests, with_step, without_blocks


def drop_steps(case: Case) -> Iterator[Case]:
    """Yield fewer steps."""
    for steps in without_blocks(case.steps):
        yield tidy(replace(case, steps=steps))


def run_eagerly(case: Case) -> Iterator[Case]:
    """Yield the case without graphs, or with one replay less."""
    yield tidy(replace(case, steps=tuple(as_eager(step) for step in case.steps)))
    for index, step in enumerate(case.steps):
        if step.launch is Launch.REPLAY:
            yield tidy(with_step(case, index, as_eager(step)))


def drop_slots(case: Case) -> Iterator[Case]:
    """Yield fewer requests, removed from every step."""
    slots = tuple(sorted(case.slot_lengths()))
    for kept in without_blocks(slots):
        steps = tuple(
            with_requests(step, tuple(request for request in step.requests if request.slot in kept))
            for step in case.steps
        )
        yield tidy(replace(case, steps=steps))


def drop_requests(case: Case) -> Iterator[Case]:
    """Yield fewer requests in one step."""
    for index, step in enumerate(case.steps):
        for requests in without_blocks(step.requests):
            yield tidy(with_step(case, index, with_requests(step, requests)))


def drop_padding(case: Case) -> Iterator[Case]:
    """Yield less padding of eager steps: none anywhere, none in one step, less in one step."""
    yield replace(case, steps=tuple(with_surplus(step, 0) for step in case.steps))
    for index, step in enumerate(case.steps):
        for surplus in lower(step.padded_tokens - step.tokens, 0):
            yield with_step(case, index, with_surplus(step, surplus))


def shrink_buckets(case: Case) -> Iterator[Case]:
    """Yield smaller graphs: all at once, then the capture and the replays of one."""
    captures = [step for step in case.steps if step.launch is Launch.CAPTURE]
    for batch in lower(max((step.padded_batch for step in captures), default=0), 1):
        yield _with_buckets(case, captures, batch)
    for captured in captures:
        for batch in lower(captured.padded_batch, 1):
            yield _with_buckets(case, (captured,), batch)


def order_slots(case: Case) -> Iterator[Case]:
    """Yield the requests of each step in the order of their sequences; then each step on the first sequences."""
    yield replace(
        case,
        steps=tuple(
            replace(step, requests=tuple(sorted(step.requests, key=lambda request: request.slot)))
            for step in case.steps
        ),
    )
    yield replace(
        case,
        steps=tuple(
            replace(step, requests=tuple(replace(request, slot=slot) for slot, request in enumerate(step.requests)))
            for step in case.steps
        ),
    )


def as_eager(step: Step) -> Step:
    """Return a replay as an eager step: over the same padded batch in a uniform mode, else without padding."""
    if step.launch is Launch.REPLAY:
        padded = step.padded_tokens if step.mode.uniform else step.tokens
        return replace(step, launch=Launch.EAGER, padded_tokens=padded)
    return step


def with_surplus(step: Step, surplus: int) -> Step:
    """Return an eager step with `surplus` rows of padding; graphs are unchanged."""
    return replace(step, padded_tokens=step.tokens + surplus) if step.launch is Launch.EAGER else step


def _with_buckets(case: Case, captures: Collection[Step], batch: int) -> Case:
    """Return the case with these graphs and their replays for at most `batch` requests."""
    graphs = set(map(graph_of, captures))

    def resized(step: Step) -> Step:
        if step.launch is Launch.EAGER or graph_of(step) not in graphs:
            return step
        return replace(step, padded_tokens=min(batch, step.padded_batch) * step.tokens_per_request)

    return tidy(replace(case, steps=tuple(map(resized, case.steps))))


EDITS = (drop_steps, run_eagerly, drop_slots, drop_requests, drop_padding, shrink_buckets, order_slots)
