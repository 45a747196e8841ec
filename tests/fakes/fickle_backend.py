"""Stands for a kernel that is not deterministic: an element is wrong in the second run that a relation makes."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend, SdpaSession
from attnfuzz.reference.case import Case, Launch, PageOrder, Step
from attnfuzz.reference.relation import Relation

_calls = itertools.count()

SECOND: dict[Relation, Callable[[Case, Step], bool]] = {
    Relation.SAME_CALL: lambda _case, _step: next(_calls) % 2 == 1,
    Relation.PAGES_RELABELLED: lambda case, _step: case.pages.order is PageOrder.REVERSED,
    Relation.BATCH_PERMUTED: lambda _case, step: step.requests[0].slot > step.requests[-1].slot,
    Relation.REQUEST_APPENDED: lambda _case, step: len(step.requests) > 2,
    Relation.PADDING_ENLARGED: lambda _case, step: step.padded_tokens > step.tokens,
    Relation.REPLAY_AS_EAGER: lambda _case, step: step.launch is Launch.EAGER,
    Relation.CHUNKS_CHANGED: lambda case, _step: case.chunk_capacity != 256,
    Relation.SPLITS_CHANGED: lambda case, _step: case.max_len_slack > 0,
}
"""How a backend can tell the second run from the first, which has two requests and nothing particular."""


@dataclass(frozen=True)
class FickleBackend(SdpaBackend):
    """`off` is added to an element of the first request in the second run of `relation`."""

    relation: Relation = Relation.SAME_CALL
    off: float = 0.5

    def open(self, case: Case, bench: Bench) -> SdpaSession:
        return _FickleSession(self, case, bench)


class _FickleSession(SdpaSession):
    def __init__(self, backend: FickleBackend, case: Case, bench: Bench) -> None:
        super().__init__(case, bench, call_without_keys=False)
        self._backend = backend

    def forward(self, index: int) -> Output:
        output = super().forward(index)
        step = self._case.steps[index]
        output.out[step.tokens :].zero_()
        if step.requests and SECOND[self._backend.relation](self._case, step):
            slots = [request.slot for request in step.requests]
            output.out[output.attended[slots.index(0)].first_row, 0, 0] += self._backend.off
        return output


SPLITS = FickleBackend(relation=Relation.SPLITS_CHANGED)
