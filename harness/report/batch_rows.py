"""The rows of a step's batch that a picture has room for, and the place of its failure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from attnfuzz.harness.verdict.failures import FAULTS, KeysRead, Observation
from attnfuzz.reference.case import Case, Request, Step

FIRST, LAST, MARKED = 9, 3, 4
"""Rows shown of a large batch: from its beginning, its end, and failing ones."""

PADDED = 2
"""Padded rows that are shown; all are alike."""


@dataclass(frozen=True)
class BatchRow:
    """Row `index` of the padded batch, -1 behind all rows: a request's, or padding with `padding` query rows."""

    index: int
    request: Request | None
    padding: int = 0


@dataclass(frozen=True)
class Elided:
    """Rows that are not drawn."""

    rows: tuple[BatchRow, ...]

    @property
    def words(self) -> str:
        """Their number and lengths, in words."""
        requests = [row.request for row in self.rows if row.request is not None]
        if not requests:
            return f"+ {len(self.rows)} more padded row{'s' * (len(self.rows) > 1)}"
        queries = _range(request.q_len for request in requests)
        keys = _range(request.kv_len for request in requests)
        padded = len(self.rows) - len(requests)
        more = f", and {padded} padded row{'s' * (padded > 1)}" if padded else ""
        return f"+ {len(requests)} more request{'s' * (len(requests) > 1)} (q {queries}, kv {keys}){more}"


def batch_rows(step: Step) -> list[BatchRow]:
    """List all rows of a step: its requests, the rows that its batch is padded with, then tokens that are in no row."""
    rows = [BatchRow(index, request) for index, request in enumerate(step.requests)]
    left = max(step.padded_tokens - step.tokens, 0)
    for index in range(len(rows), step.padded_batch):
        own = min(step.tokens_per_request, left)
        rows.append(BatchRow(index, None, own))
        left -= own
    if left:
        rows.append(BatchRow(-1, None, left))
    return rows


def shown(rows: list[BatchRow], marked: Collection[int]) -> list[BatchRow | Elided]:
    """Elide the middle of a large batch and most of the padding, but keep the rows at the `marked` positions."""
    large = len(rows) > FIRST + LAST + MARKED
    keep = {*range(FIRST), *range(len(rows) - LAST, len(rows))} if large else {*range(len(rows))}
    padded = [position for position, row in enumerate(rows) if row.request is None and row.index >= 0]
    if len(padded) > PADDED + 1:
        keep -= {*padded[PADDED:]}
    keep |= {*sorted(marked)[:MARKED]}
    result: list[BatchRow | Elided] = []
    for kept, run in groupby(enumerate(rows), key=lambda item: item[0] in keep):
        members = [row for _, row in run]
        result += members if kept else [Elided(tuple(members))]
    return result


def _range(numbers: Iterable[int]) -> str:
    values = sorted(set(numbers))
    return str(values[0]) if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


_OF_THE_BATCH = {"seq_lens": 0, "block_tables": 0, "cum_seq_lens_q": 1, "cum_seq_lens_kv": 1}
"""Metadata with an element per row of the batch, and the number of elements before the first row's."""


@dataclass(frozen=True)
class Failing:
    """The place to mark in step `step` (-1: unknown).

    `row` is the failing row of the padded batch, if known, with a `token` of its request and a `head`. `padding`: the
    rows of no request are wrong. `fault` is a stray access to a known element. `keys` are those that the token reads.
    """

    step: int
    row: int | None = None
    token: int | None = None
    head: int | None = None
    padding: bool = False
    fault: Observation | None = None
    keys: KeysRead | None = None

    def marks(self, step: int, row: int, *, real: bool) -> bool:
        """Return whether to mark a row of the padded batch; `real` if it is a request's."""
        return step == self.step and (row == self.row or (self.padding and not real))


def failing(case: Case, observation: Observation) -> Failing:
    """Locate the failure in `case`, as far as `observation` says where it is."""
    step = observation.step if observation.step < len(case.steps) else -1
    if observation.kind in FAULTS:
        access = observation.access
        if access is None or access.index is None or access.size is None:
            return Failing(step)
        before = _OF_THE_BATCH.get(observation.place)
        return Failing(step, row=None if before is None else access.index - before, fault=observation)
    if observation.place == "padded rows":
        return Failing(step, padding=True)
    wrong = observation.row
    if wrong is None:
        return Failing(step)
    return Failing(step, row=wrong.request, token=wrong.token, head=wrong.head, keys=observation.keys)
