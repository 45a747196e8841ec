"""Transfers: a failing case where its cause may show as well, in another mode, launch, layout, dtype or backend.

The opposite of `ablation`: a feature without which the case passes is needed; a place where it still fails shares the
cause. Nothing else about the case changes than what the place forces.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from attnfuzz.harness.reduce.cuts import tidy, with_requests
from attnfuzz.harness.reduce.possible import possible
from attnfuzz.harness.reduce.removals import no_graphs
from attnfuzz.reference.case import Case, Guard, Launch, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)


class Transfer(NamedTuple):
    """A case somewhere else: `axis` is what differs, and `value` what it is there."""

    axis: str
    value: str
    case: Case


def transfers(
    case: Case, *, backends: Collection[str] = (), allowed: Callable[[Case], bool] = lambda _: True
) -> Iterator[Transfer]:
    """Yield the possible cases that are `case` in one other place each, of those that are `allowed`.

    `backends` are the other backends to try; `allowed` is asked about their cases, too.
    """
    for axis, value, moved in _moved(case, backends):
        if moved != case and possible(moved) and allowed(moved):
            yield Transfer(axis, value, moved)


def captured(case: Case) -> Case | None:
    """Return `case` with each step captured on padding and replayed; None if a graph can't hold one of its steps."""
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
    """Return `case` with every step in another mode, over the same prefixes.

    A step of several query tokens is a decode of the last one; a step without a stride gets that of its longest
    request, and requests with other numbers of tokens are raised to it where the mode is uniform.
    """
    return tidy(replace(case, steps=tuple(_in_mode(step, mode) for step in case.steps), relation=None))


def _moved(case: Case, backends: Collection[str]) -> Iterator[tuple[str, str, Case]]:
    geometry = case.geometry
    for mode in Mode:
        if any(step.mode is not mode for step in case.steps):
            yield "mode", mode.value, in_mode(case, mode)
    if any(step.launch is Launch.REPLAY for step in case.steps):
        yield from (("launch", "eager", eager) for eager in no_graphs(case))
    elif (replayed := captured(case)) is not None:
        yield "launch", "replay", replayed
    for layout in KvLayout:
        yield "layout", layout.value, replace(case, geometry=replace(geometry, kv_layout=layout))
    for dtype in _DTYPES:
        kv_dtype = dtype if geometry.kv_dtype is geometry.dtype else geometry.kv_dtype
        yield "dtype", dtype.value, replace(case, geometry=replace(geometry, dtype=dtype, kv_dtype=kv_dtype))
    for guard in Guard:
        yield "guard", guard.value, replace(case, guard=guard)
    for backend in backends:
        yield "backend", backend, replace(case, backend=backend)


def _in_mode(step: Step, mode: Mode) -> Step:
    if step.mode is mode:
        return step
    launch = step.launch if mode.speculative else Launch.EAGER
    if not mode.speculative and step.launch is Launch.CAPTURE:
        # Nothing to run: tidied away.
        return replace(step, mode=mode, requests=(), padded_tokens=0, tokens_per_request=0, launch=Launch.EAGER)
    longest = max((request.q_len for request in step.requests), default=step.tokens_per_request)
    stride = 1 if mode is Mode.DECODE else max(1, step.tokens_per_request or longest) if mode.speculative else 0
    requests = tuple(_with_queries(each, stride, uniform=mode.uniform) for each in step.requests)
    padding = step.padded_batch - len(step.requests)
    moved = replace(step, mode=mode, requests=requests, tokens_per_request=stride, launch=launch)
    if mode.uniform or launch is not Launch.EAGER:
        return replace(moved, padded_tokens=(len(requests) + padding) * stride)
    return with_requests(replace(moved, requests=(), padded_tokens=0), requests)


def _with_queries(request: Request, stride: int, *, uniform: bool) -> Request:
    """A request with as many query tokens as a mode takes, after the same prefix; an empty KV stays empty."""
    q_len = stride if uniform else min(max(request.q_len, 1), stride) if stride else request.q_len
    prefix = max(0, request.kv_len - request.q_len)
    return replace(request, q_len=q_len, kv_len=prefix + q_len if request.kv_len else 0)
