"""Cases of two steps, for failures that depend on earlier cases: state that a kernel keeps shows within one case, too.

Such a case can be minimized, and has a script: both run its steps one after the other, and no other cases.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Launch, Request, Step
from attnfuzz.reference.case_file import possible


def folded(case: AnyCase, failing_step: int) -> Iterator[Case]:
    """Yield the possible cases with the failing step of `case` after one with other lengths, or with one request.

    The earlier step has sequences of its own. Yields nothing for a step in a graph, or if the case is not of attention.
    """
    if not isinstance(case, Case) or failing_step >= len(case.steps):
        return
    last = case.steps[failing_step]
    if last.launch is not Launch.EAGER or not last.requests:
        return
    for earlier in _others(last, case.geometry.page_size):
        two = replace(case, steps=(earlier, last), past=(), relation=None)
        if possible(two):
            yield two


def _others(step: Step, page_size: int) -> Iterator[Step]:
    free = 1 + max(request.slot for request in step.requests)
    own = tuple(replace(request, slot=free + at) for at, request in enumerate(step.requests))
    lengths: tuple[Callable[[Request], int], ...] = (
        lambda _: 0,
        lambda request: max(request.q_len, 1),
        lambda request: request.kv_len + page_size,
    )
    for length in lengths:
        yield replace(step, requests=tuple(replace(each, kv_len=length(each)) for each in own))
    if len(own) > 1:
        yield replace(step, requests=own[:1], padded_tokens=_rows(step, own[0]))


def _rows(step: Step, request: Request) -> int:
    return step.tokens_per_request if step.mode.uniform else request.q_len
