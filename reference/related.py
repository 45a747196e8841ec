"""The second run of a metamorphic relation, and the correspondence of requests between both runs."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Launch, PageOrder, Request, Step, steps_in_chunks
from attnfuzz.reference.relation import Relation

_ROWS_ADDED = 2
"""Number of requests, or tokens, by which PADDING_ENLARGED pads a step."""

_QUERIES_APPENDED = 3
"""Number of new tokens of the request that REQUEST_APPENDED adds to a prefill."""

_SLACK = 1024
"""Slack that SPLITS_CHANGED adds to an exact maximum: a kernel that splits by the stated maximum makes several splits.
"""


@dataclass(frozen=True)
class Related:
    """The other case, without a relation of its own, and the places of the first case's rows in it.

    `steps[i]` is the other case's step for step i of the first, or None if there is none (a capture). The request at
    position p of step i is at position `positions[i][p]` of that step.
    """

    case: Case
    relation: Relation
    steps: tuple[int | None, ...]
    positions: tuple[tuple[int, ...], ...]


class NotRelated(ValueError):
    """A relation that does not apply to a case. The message is a clause with the reason."""


def related(case: Case) -> Related:
    """Apply `case.relation`, which must not be None, to an otherwise valid case.

    The other case may exceed a bound: `attnfuzz.reference.validity` checks it.

    Raises:
        NotRelated: the relation changes nothing about this case.
    """
    assert case.relation is not None
    other = _CHANGES[case.relation](replace(case, relation=None))
    steps: list[int | None] = []
    dropped = 0
    for index, step in enumerate(case.steps):
        captured = step.launch is Launch.CAPTURE
        steps.append(None if captured else index - dropped)
        dropped += captured and case.relation is Relation.REPLAY_AS_EAGER
    order = -1 if case.relation is Relation.BATCH_PERMUTED else 1
    positions = tuple(tuple(range(len(step.requests))[::order]) for step in case.steps)
    return Related(case=other, relation=case.relation, steps=tuple(steps), positions=positions)


def _relabel_pages(case: Case) -> Case:
    order = case.pages.order
    if order is PageOrder.SHARED_PREFIX:
        raise NotRelated("sequences share pages: which ones they share would change")
    size = case.geometry.page_size
    if sum(-(-length // size) for length in case.slot_lengths().values()) < 2:
        raise NotRelated("there are no two pages that could change places")
    other = PageOrder.IDENTITY if order in (PageOrder.REVERSED, PageOrder.SHUFFLED) else PageOrder.REVERSED
    return replace(case, pages=replace(case.pages, order=other))


def _permute_batch(case: Case) -> Case:
    if all(len(step.requests) < 2 for step in case.steps):
        raise NotRelated("no step has several requests")
    return replace(case, steps=tuple(replace(step, requests=step.requests[::-1]) for step in case.steps))


def _append_request(case: Case) -> Case:
    slot = len(case.slot_lengths())
    replays = [step for step in case.steps if step.launch is Launch.REPLAY]
    full = any(step.padded_batch == len(step.requests) for step in replays)

    def appended(step: Step) -> Step:
        if step.launch is Launch.CAPTURE:
            return _padded(step, int(full))
        q_len = step.tokens_per_request or _QUERIES_APPENDED
        request = Request(slot, q_len, q_len + case.geometry.page_size + 1)
        larger = replace(step, requests=(*step.requests, request))
        if step.launch is Launch.REPLAY:
            return _padded(larger, int(full))
        return replace(larger, padded_tokens=step.padded_tokens + q_len)

    steps = tuple(appended(step) for step in case.steps)
    batch = max((len(step.requests) for step in steps_in_chunks(case.steps, case.geometry)), default=0)
    # Each request of the largest batch keeps its share of a chunk.
    capacity = case.chunk_capacity // batch * (batch + 1) if batch else case.chunk_capacity
    return replace(case, steps=steps, chunk_capacity=capacity)


def _padded(step: Step, rows: int) -> Step:
    """Pad a step by `rows` more requests, or by tokens if padding adds no requests."""
    whole = step.mode.uniform or step.launch is not Launch.EAGER
    return replace(step, padded_tokens=step.padded_tokens + rows * (step.tokens_per_request if whole else 1))


def _replay_eagerly(case: Case) -> Case:
    if all(step.launch is not Launch.REPLAY for step in case.steps):
        raise NotRelated("no step is replayed")
    steps = (replace(step, launch=Launch.EAGER) for step in case.steps if step.launch is not Launch.CAPTURE)
    return replace(case, steps=tuple(steps))


def _change_chunks(case: Case) -> Case:
    chunked = steps_in_chunks(case.steps, case.geometry)
    if case.geometry.latent is None or not chunked:
        raise NotRelated("no prefix is attended to in chunks")
    batch = max(len(step.requests) for step in chunked)
    longest = max(step.longest_prefix for step in chunked)
    if any(step.chunks(case.chunk_capacity) > 1 for step in chunked):
        return replace(case, chunk_capacity=batch * longest)
    capacity = max(batch, *(-(-step.longest_prefix // 2) * len(step.requests) for step in chunked))
    if all(step.chunks(capacity) < 2 for step in chunked):
        raise NotRelated("no prefix can be cut in two")
    return replace(case, chunk_capacity=capacity)


_CHANGES: dict[Relation, Callable[[Case], Case]] = {
    Relation.SAME_CALL: lambda case: case,
    Relation.PAGES_RELABELLED: _relabel_pages,
    Relation.BATCH_PERMUTED: _permute_batch,
    Relation.REQUEST_APPENDED: _append_request,
    Relation.PADDING_ENLARGED: lambda case: replace(
        case, steps=tuple(_padded(step, _ROWS_ADDED) for step in case.steps)
    ),
    Relation.REPLAY_AS_EAGER: _replay_eagerly,
    Relation.CHUNKS_CHANGED: _change_chunks,
    Relation.SPLITS_CHANGED: lambda case: replace(case, max_len_slack=0 if case.max_len_slack else _SLACK),
}
