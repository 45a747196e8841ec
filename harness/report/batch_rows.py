"""The rows of a step's batch that a picture has room for, in order, and what it leaves out."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from attnfuzz.reference.case import Request, Step

FIRST, LAST, MARKED = 9, 3, 4
"""Rows that are shown of a large batch: so many from its beginning and end, and so many that fail."""

PADDED = 2
"""Padded rows that are shown: they are all alike."""


@dataclass(frozen=True)
class BatchRow:
    """Row `index` of the padded batch: a request's, or (None) one of padding with so many query rows in `padding`.

    `index` is -1 for padding that is added behind all rows, as tokens.
    """

    index: int
    request: Request | None
    padding: int = 0


@dataclass(frozen=True)
class Elided:
    """Rows that are left out."""

    rows: tuple[BatchRow, ...]

    @property
    def words(self) -> str:
        """How many there are, and how long."""
        requests = [row.request for row in self.rows if row.request is not None]
        if not requests:
            return f"+ {len(self.rows)} more padded row{'s' * (len(self.rows) > 1)}"
        queries = _range(request.q_len for request in requests)
        keys = _range(request.kv_len for request in requests)
        padded = len(self.rows) - len(requests)
        more = f", and {padded} padded row{'s' * (padded > 1)}" if padded else ""
        return f"+ {len(requests)} more request{'s' * (len(requests) > 1)} (q {queries}, kv {keys}){more}"


def batch_rows(step: Step) -> list[BatchRow]:
    """All rows of a step: its requests, the rows that its batch is padded with, then tokens that are in no row."""
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
    """`rows` without the middle of a large batch and most of the padding, but with those at the `marked` positions."""
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
