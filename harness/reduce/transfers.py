"""Transfers: a failing case in another mode or launch, where its cause may be visible as well.

This is the opposite of `ablation`: a feature is needed if the case passes without it; a place shares the cause if the
case still fails there. Only changes that the place requires are made.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Launch, Mode, Request, Step
from attnfuzz.reference.edits.cuts import map_requests, tidy, with_q_len, with_requests
from attnfuzz.reference.edits.steps import with_surplus
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation


def moved(case: Case, to: Case, fingerprint: Fingerprint) -> Iterator[Case]:
    """Yield `case` where `to` fails with this fingerprint: in its backend and mode, and replayed if `to` is.

    Variants follow with rows in which the failure is visible, and with the contents and memory of `to`.
    """
    there = replace(case, backend=to.backend)
    if fingerprint.mode in set(Mode) and Mode(fingerprint.mode) not in {step.mode for step in there.steps}:
        there = in_mode(there, Mode(fingerprint.mode))
    yield there
    if _replays(to) and not _replays(there) and (replayed := captured(there)) is not None:
        yield replayed
    yield from _visible(there, fingerprint.place)
    yield replace(
        there,
        guard=to.guard,
        values=to.values,
        outputs=to.outputs,
        workspace=to.workspace,
        pages=replace(to.pages, hole=there.pages.hole),
        views=to.views,
        seed=to.seed,
    )


def _visible(case: Case, place: str) -> Iterator[Case]:
    if place == "padded rows":
        yield related(replace(case, relation=Relation.PADDING_ENLARGED)).case
    elif place == "empty rows":
        yield map_requests(case, lambda request: replace(request, kv_len=0))
        yield with_few_keys(case)


def _replays(case: Case) -> bool:
    return any(step.launch is Launch.REPLAY for step in case.steps)


def captured(case: Case) -> Case | None:
    """Return `case` with each step captured on padding and replayed, or None if a graph can't hold one of its steps."""
    steps: list[Step] = []
    seen = set()
    for step in case.steps:
        if step.launch is Launch.CAPTURE:
            continue
        if not step.mode.speculative or not step.tokens:
            return None
        padded = max(step.padded_batch, len(step.requests)) * step.tokens_per_request
        if (step.mode, padded) not in seen:
            seen.add((step.mode, padded))
            steps.append(replace(step, requests=(), padded_tokens=padded, launch=Launch.CAPTURE))
        steps.append(replace(step, padded_tokens=padded, launch=Launch.REPLAY))
    return replace(case, steps=tuple(steps), relation=None)


def in_mode(case: Case, mode: Mode) -> Case:
    """Return `case` with every step in another mode, over the same prefixes and with padding where there was some.

    A step of several query tokens becomes a decode of the last one. A step without a stride gets that of its longest
    request, and other requests are raised to it if the mode is uniform.
    """
    return tidy(replace(case, steps=tuple(_in_mode(step, mode) for step in case.steps), relation=None))


def with_few_keys(case: Case) -> Case:
    """Return `case` with at least two queries and one key fewer than queries in each request; a decode is unchanged."""
    return replace(case, steps=tuple(_with_few_keys(step) for step in case.steps))


def _with_few_keys(step: Step) -> Step:
    if step.mode is Mode.DECODE:
        return step
    stride = max(2, step.tokens_per_request) if step.tokens_per_request else 0
    asked = [replace(each, q_len=stride if step.mode.uniform else max(2, each.q_len)) for each in step.requests]
    requests = tuple(replace(each, kv_len=each.q_len - 1) for each in asked)
    if step.mode.uniform or step.launch is not Launch.EAGER:
        padded = step.padded_batch * stride
        return replace(step, requests=requests, tokens_per_request=stride, padded_tokens=padded)
    return with_requests(replace(step, tokens_per_request=stride), requests)


def _in_mode(step: Step, mode: Mode) -> Step:
    if step.mode is mode:
        return step
    launch = step.launch if mode.speculative else Launch.EAGER
    if not mode.speculative and step.launch is Launch.CAPTURE:
        # Nothing to run: `tidy` drops it.
        return replace(step, mode=mode, requests=(), padded_tokens=0, tokens_per_request=0, launch=Launch.EAGER)
    longest = max((request.q_len for request in step.requests), default=step.tokens_per_request)
    stride = mode.stride(max(1, step.drafts or longest))
    requests = tuple(_with_queries(each, stride, uniform=mode.uniform) for each in step.requests)
    moved = replace(step, mode=mode, requests=requests, tokens_per_request=stride, launch=launch)
    surplus = _surplus(step)
    if mode.uniform or launch is not Launch.EAGER:
        return replace(moved, padded_tokens=len(requests) * stride + -(-surplus // stride) * stride)
    return with_surplus(moved, surplus)


def _surplus(step: Step) -> int:
    """Return a step's rows of padding, without unused slots of a ragged graph."""
    if step.mode.uniform or step.launch is not Launch.EAGER:
        return (step.padded_batch - len(step.requests)) * step.tokens_per_request
    return step.padded_tokens - step.tokens


def _with_queries(request: Request, stride: int, *, uniform: bool) -> Request:
    """Return a request with as many query tokens as a mode takes."""
    if uniform:
        return with_q_len(request, stride)
    return with_q_len(request, min(max(request.q_len, 1), stride) if stride else request.q_len)
