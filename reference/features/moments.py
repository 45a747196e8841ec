"""The steps that run, each with the past of its sequences and graphs: the subjects of the axes of steps."""

from collections.abc import Iterator
from dataclasses import dataclass

from attnfuzz.reference.case import Case, Launch, Mode, Step


@dataclass(frozen=True, slots=True)
class Moment:
    """A step that runs, in the context of its case.

    `asking` has the (q_len, kv_len) of the requests with queries. `prefixes` has the number of keys that each sequence
    had before its new tokens in the last step that used it. `replayed`: its graph has run before. `captured_late`:
    another step ran before its graph was captured.
    """

    case: Case
    step: Step
    asking: tuple[tuple[int, int], ...]
    prefixes: dict[int, int]
    replayed: bool
    captured_late: bool


def moments_of(case: Case) -> Iterator[Moment]:
    """Yield the steps that run with requests, in order."""
    prefixes: dict[int, int] = {}
    replayed: set[tuple[Mode, int]] = set()
    late: set[tuple[Mode, int]] = set()
    ran = False
    for step in case.steps:
        graph = (step.mode, step.padded_tokens)
        if step.launch is Launch.CAPTURE:
            if ran:
                late.add(graph)
            continue
        if step.idle:
            ran = True
            continue
        replay = step.launch is Launch.REPLAY
        asking = tuple((request.q_len, request.kv_len) for request in step.requests if request.q_len)
        yield Moment(case, step, asking, prefixes.copy(), replay and graph in replayed, replay and graph in late)
        ran = True
        if replay:
            replayed.add(graph)
        for request in step.requests:
            prefixes[request.slot] = request.kv_len - request.q_len
