"""Where in its case a failure shows."""

from dataclasses import dataclass

from attnfuzz.harness.verdict.failures import FAULTS, Observation
from attnfuzz.reference.case import Case

_OF_THE_BATCH = {"seq_lens": 0, "block_tables": 0, "cum_seq_lens_q": 1, "cum_seq_lens_kv": 1}
"""Metadata that has an element for each row of the batch, and so many before the first row's."""


@dataclass(frozen=True)
class StrayAccess:
    """A stray access to `tensor`, at index `element` of the `count` of its largest axis."""

    tensor: str
    element: int
    count: int


@dataclass(frozen=True)
class Failing:
    """What to mark in step `step` (-1: it is not known which).

    `row` is the row of the padded batch that is named, if one is; with a `token` of its request and a `head`. `padding`
    says that the rows that belong to no request are wrong.
    """

    step: int
    row: int | None = None
    token: int | None = None
    head: int | None = None
    padding: bool = False
    access: StrayAccess | None = None

    def marks(self, step: int, row: int, *, real: bool) -> bool:
        """Whether a row of the padded batch is to be marked; `real` says that it is a request's."""
        return step == self.step and (row == self.row or (self.padding and not real))


def failing(case: Case, observation: Observation) -> Failing:
    """Where `case` failed, as far as `observation` tells."""
    step = observation.step if observation.step < len(case.steps) else -1
    if observation.kind in FAULTS:
        access = _access(observation)
        row = None
        if access is not None and access.tensor in _OF_THE_BATCH:
            row = access.element - _OF_THE_BATCH[access.tensor]
        return Failing(step, row=row, access=access)
    if observation.place == "padded rows":
        return Failing(step, padding=True)
    wrong = observation.row
    return Failing(step) if wrong is None else Failing(step, row=wrong.request, token=wrong.token, head=wrong.head)


def _access(observation: Observation) -> StrayAccess | None:
    seen = observation.access
    if seen is None or seen.index is None or seen.size is None:
        return None
    return StrayAccess(observation.place, seen.index, seen.size)
