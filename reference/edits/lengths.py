"""Edits that make queries and KV shorter."""

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Launch, Request, Step
from attnfuzz.reference.edits.cuts import lower, map_requests, with_requests, with_step


def draft_fewer_tokens(case: Case) -> Iterator[Case]:
    """Yield fewer draft tokens in every speculative step, over the same KV or with their keys dropped."""
    for stride in lower(max((step.drafts for step in case.steps), default=0), 1):
        yield from with_drafts(case, stride)


def with_drafts(case: Case, stride: int) -> Iterator[Case]:
    """Yield at most `stride` draft tokens in every speculative step, with their keys dropped, or over the same KV."""
    for shift in (True, False):
        yield replace(case, steps=tuple(_with_stride(step, stride, shift=shift) for step in case.steps))


def shorten_all_kv(case: Case) -> Iterator[Case]:
    """Yield a lower maximum for every KV length, then the same number of keys taken from every request."""
    longest = max(case.slot_lengths().values(), default=0)
    for ceiling in lower(longest, 0):
        yield map_requests(case, partial(_at_most, ceiling))
    for kept in lower(longest, 0):
        yield map_requests(case, partial(_without, longest - kept, None))


def shorten_slots(case: Case) -> Iterator[Case]:
    """Yield the same number of keys taken from one sequence in every step."""
    for slot, longest in case.slot_lengths().items():
        for kept in lower(longest, 0):
            yield map_requests(case, partial(_without, longest - kept, slot))


def shorten_q(case: Case) -> Iterator[Case]:
    """Yield fewer query tokens of one request in a ragged step, over the same KV or with their keys dropped."""
    ragged = ((index, step) for index, step in enumerate(case.steps) if not step.mode.uniform)
    for index, step in ragged:
        for position, request in enumerate(step.requests):
            for q_len in lower(request.q_len, 0):
                kv_len = max(0, request.kv_len - (request.q_len - q_len))
                yield _with_request(case, index, position, replace(request, q_len=q_len, kv_len=kv_len))
                yield _with_request(case, index, position, replace(request, q_len=q_len))


def _with_request(case: Case, index: int, position: int, request: Request) -> Case:
    step = case.steps[index]
    requests = (*step.requests[:position], request, *step.requests[position + 1 :])
    return with_step(case, index, with_requests(step, requests))


def _at_most(ceiling: int, request: Request) -> Request:
    return replace(request, kv_len=min(request.kv_len, ceiling))


def _without(cut: int, slot: int | None, request: Request) -> Request:
    """Return `request` with `cut` fewer keys, if it is of the sequence `slot`, or of any if that is None."""
    return replace(request, kv_len=max(0, request.kv_len - cut)) if slot in (None, request.slot) else request


def _with_stride(step: Step, stride: int, *, shift: bool) -> Step:
    """Return a speculative step with at most `stride` draft tokens; with `shift`, their keys are dropped too."""
    stride = step.mode.stride(stride)
    if step.tokens_per_request <= stride:
        return step
    requests = tuple(
        replace(
            request,
            q_len=min(request.q_len, stride),
            kv_len=max(0, request.kv_len - max(0, request.q_len - stride)) if shift else request.kv_len,
        )
        for request in step.requests
    )
    if step.mode.uniform or step.launch is not Launch.EAGER:
        padded = step.padded_batch * stride
    else:
        padded = with_requests(step, requests).padded_tokens
    return replace(step, requests=requests, tokens_per_request=stride, padded_tokens=padded)


EDITS = (draft_fewer_tokens, shorten_all_kv, shorten_slots, shorten_q)
