"""The steps of a case of recurrent state as those of a server, with the graphs that it captures before."""

from dataclasses import dataclass
from typing import Final

from attnfuzz.kernels.releases.state_lanes import ANY_LAYER, LaneSequences
from attnfuzz.reference.case import Case, KvView, Launch, Mode, Pages, Request, Step, TableTail, Views
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateStep

_MODES: Final = {
    StateMode.PREFILL: Mode.EXTEND,
    StateMode.DECODE: Mode.DECODE,
    StateMode.VERIFY: Mode.TARGET_VERIFY,
}


@dataclass(frozen=True)
class ServedSteps:
    """`case` has `captures` captures, followed by the steps with their requests as sequences.

    `lanes` are the lanes of its sequences: each new request of a lane is another one.
    """

    case: Case
    captures: int
    lanes: dict[int, int]

    @classmethod
    def of(cls, case: StateCase) -> "ServedSteps":
        """Return the steps of a case."""
        lanes = LaneSequences()
        steps = [_step(case, each, tuple(lanes.request(row, each.mode) for row in each.rows)) for each in case.steps]
        graphs = {(step.mode, step.padded_tokens) for step in steps if step.launch is Launch.REPLAY}
        captures = [
            Step(
                mode=mode,
                requests=(),
                padded_tokens=tokens,
                tokens_per_request=next(step.tokens_per_request for step in steps if step.mode is mode),
                launch=Launch.CAPTURE,
            )
            for mode, tokens in sorted(graphs)
        ]
        served = Case(
            backend=case.backend,
            geometry=ANY_LAYER,
            steps=(*captures, *steps),
            views=Views(kv=KvView.TOKEN_MAJOR),
            pages=Pages(tail=TableTail.STALE if case.seed % 2 else TableTail.ZEROS),
            # Some servers have buffers for a larger graph.
            max_len_slack=case.seed // 2 % 2,
            seed=case.seed,
        )
        return cls(served, len(captures), lanes.of_sequence)


def _step(case: StateCase, step: StateStep, requests: tuple[Request, ...]) -> Step:
    stride = case.width_of(step.mode)
    tokens = sum(request.q_len for request in requests)
    prefill = step.mode is StateMode.PREFILL
    return Step(
        mode=_MODES[step.mode],
        requests=requests,
        padded_tokens=tokens + step.padding if prefill else (len(requests) + step.padding) * stride,
        tokens_per_request=0 if prefill else stride,
        launch=Launch.REPLAY if step.replayed else Launch.EAGER,
    )
