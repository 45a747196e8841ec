"""The steps of a case of recurrent state as demands on a scheduler: sequences, with new and computed tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from attnfuzz.kernels.releases.state_lanes import ANY_LAYER, LaneSequences
from attnfuzz.kernels.vllm.config import ServerLimits
from attnfuzz.reference.case import Case, Launch, Mode, Pages, Request, Step, TableTail
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateRow, StateStep

_MODES = {
    StateMode.PREFILL: Mode.EXTEND,
    StateMode.DECODE: Mode.DECODE,
    StateMode.VERIFY: Mode.DRAFT_EXTEND,
}

_BLOCK_SIZES: Final = (8, 16)
"""Tokens of a block of a prefix cache: few, so that steps cross their ends."""


@dataclass(frozen=True)
class Demands:
    """`case` has the requests of each step as sequences of a case of attention.

    `lanes` are the lanes of its sequences: each new request of a lane is another one. `decoding` are the (step,
    sequence) that decode or verify; others are chunks of a prompt. `block_size` is the number of tokens of a block, at
    whose ends a prefix cache keeps states: a server without it has blocks of whole requests.
    """

    case: Case
    lanes: dict[int, int]
    decoding: frozenset[tuple[int, int]]
    limits: ServerLimits
    block_size: int

    @classmethod
    def of(cls, case: StateCase) -> "Demands":
        """Return the demands of a case."""
        size = _BLOCK_SIZES[case.seed % len(_BLOCK_SIZES)]
        # Requests that find a block in the prefix cache begin behind it, and resumed ones anywhere.
        lanes = LaneSequences(lambda row: size - row.lane % 2) if case.move else LaneSequences()
        steps, decoding = [], set()
        for index, step in enumerate(case.steps):
            requests = [lanes.request(row, step.mode) for row in step.rows if row.tokens]
            steps.append(_step(case, step, tuple(requests)))
            for row, request in zip([row for row in step.rows if row.tokens], requests, strict=True):
                if _decodes(case, step, row):
                    decoding.add((index, request.slot))
        tail = TableTail.STALE if case.seed % 2 else TableTail.ZEROS
        demand = Case(
            backend=case.backend,
            geometry=ANY_LAYER,
            steps=tuple(steps),
            pages=Pages(tail=tail),
            seed=case.seed,
        )
        limits = _limits(case, demand)
        return cls(demand, lanes.of_sequence, frozenset(decoding), limits, size if case.move else limits.model_len)


def next_accepted(case: StateCase, index: int) -> dict[int, int]:
    """Return the number of tokens of a step that each of its lanes accepts: 1 unless its next step says more."""
    found = {row.lane: 1 for row in case.steps[index].rows if row.tokens}
    for lane in found:
        later = (row for step in case.steps[index + 1 :] for row in step.rows if row.lane == lane)
        found[lane] = next((row.accepted for row in later if row.tokens), 1)
    return found


def _decodes(case: StateCase, step: StateStep, row: StateRow) -> bool:
    """Return whether a request decodes. One token that continues a prefill is a decode or the end of a prompt."""
    if step.mode is not StateMode.PREFILL:
        return True
    return row.initial and row.tokens == 1 and (case.seed + row.lane) % 2 == 0


def _step(case: StateCase, step: StateStep, requests: tuple[Request, ...]) -> Step:
    stride = case.width_of(step.mode)
    tokens = sum(request.q_len for request in requests) + case.padded_tokens(step)
    if step.mode is not StateMode.PREFILL:
        tokens = max(tokens, (len(requests) + step.padding) * stride)
    return Step(
        mode=_MODES[step.mode],
        requests=requests,
        padded_tokens=max(tokens, 1),
        tokens_per_request=0 if step.mode is StateMode.PREFILL else stride,
        launch=Launch.REPLAY if step.replayed else Launch.EAGER,
    )


def _limits(case: StateCase, demand: Case) -> ServerLimits:
    """Return the limits of a server that holds the largest step, with a graph of each step's size."""
    stride = 1 + case.drafts
    graphs = tuple(sorted({-(-step.padded_tokens // stride) * stride for step in demand.steps} | {stride}))
    longest = max((each.kv_len for each in _requests(demand)), default=1)
    return ServerLimits(
        model_len=longest + 1 + case.drafts,
        requests=max(case.lanes, *(_padded_rows(step) for step in case.steps)),
        tokens=graphs[-1],
        graphs=graphs,
    )


def _padded_rows(step: StateStep) -> int:
    return 0 if step.mode is StateMode.PREFILL else len(step.rows) + step.padding


def _requests(demand: Case) -> Iterator[Request]:
    return (request for step in demand.steps for request in step.requests)
