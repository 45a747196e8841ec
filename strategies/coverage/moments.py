"""The steps of a case that run, each with what came before it."""

from collections.abc import Iterator
from dataclasses import dataclass

from attnfuzz.reference.case import Case, Launch, Mode, Step


@dataclass(frozen=True, slots=True)
class Moment:
    """A step that runs, where it stands in its case.

    `asking` has the (q_len, kv_len) of the requests that have queries, `prefixes` how many keys each slot had before
    its new tokens when it was last used. `replayed` says whether its graph has run before, `captured_late` whether
    something else has run before its graph was captured.
    """

    case: Case
    step: Step
    asking: tuple[tuple[int, int], ...]
    prefixes: dict[int, int]
    replayed: bool
    captured_late: bool


def moments_of(case: Case) -> Iterator[Moment]:
    """The steps that run, in order."""
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
        replay = step.launch is Launch.REPLAY
        asking = tuple((request.q_len, request.kv_len) for request in step.requests if request.q_len)
        yield Moment(case, step, asking, prefixes.copy(), replay and graph in replayed, replay and graph in late)
        ran = True
        if replay:
            replayed.add(graph)
        for request in step.requests:
            prefixes[request.slot] = request.kv_len - request.q_len
