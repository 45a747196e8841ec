"""The new tokens of a step, their places in the KV cache, and the metadata that tells a writer of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable, Row, table_rows
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case, PaddedSlot, Request, Step

Metadata = dict[str, torch.Tensor]
"""Integer tensors by the names of a writer's arguments, on the host."""


@dataclass(frozen=True)
class TokenPlace:
    """The place of one new token: the `token`-th one of the `request`-th request, at `position` among its keys.

    `row` is its number among the step's tokens.
    """

    row: int
    request: int
    token: int
    position: int
    page: int
    offset: int


class NewTokens:
    """The new tokens of a case's steps in the dtype of the queries, and their places in the pool.

    A request's last `q_len` tokens are new. They are packed one request after another; padded tokens follow.
    """

    def __init__(self, case: Case, kv: PagedKv) -> None:
        geometry = case.geometry
        self._kv = kv
        self._tokens = SlotTokens(
            case,
            heads=geometry.kv_heads,
            key_dim=geometry.head_dim_qk,
            value_dim=geometry.head_dim_vo,
            dtype=geometry.dtype,
            # Others than those that the pool holds before, so that every write changes it.
            part=1,
            extra=max(step.padded_tokens for step in case.steps),
            latent=geometry.latent is not None,
        )
        kv.share_prefixes(self._tokens)

    def values(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a step's tokens, padded ones included: [padded tokens, kv_heads, head dim] each."""
        spans = [self._span(request) for request in step.requests]
        begin = self._tokens.extra.start
        spans.append(slice(begin, begin + step.padded_tokens - step.tokens))
        key, value = (torch.cat([tokens[span] for span in spans]) for tokens in (self._tokens.key, self._tokens.value))
        return key, value

    def _span(self, request: Request) -> slice:
        end = self._tokens.spans[request.slot].start + request.kv_len
        return slice(end - request.q_len, end)

    def places(self, step: Step) -> Iterator[TokenPlace]:
        """Yield the places of the requests' new tokens, in their order; those that are not stored are left out."""
        size, first = self._kv.page_size, 0
        for index, request in enumerate(step.requests):
            before, left = request.kv_len - request.q_len, self._kv.left(request)
            for token in range(max(0, left * size - before), request.q_len):
                position = before + token
                page = self._kv.pages[request.slot][position // size]
                yield TokenPlace(first + token, index, token, position, page, position % size)
            first += request.q_len

    def before(self, step: Step) -> Step:
        """Return the step whose keys are in the pool before the new tokens are written: each request's prefix."""
        requests = tuple(Request(each.slot, 0, each.kv_len - each.q_len) for each in step.requests)
        return Step(mode=step.mode, requests=requests, padded_tokens=step.padded_tokens)


def page_lists(table: PageTable, rows: Sequence[Row]) -> list[list[int]]:
    """List the pages of each row: those that hold its keys, and the dummy page for a padded row."""
    ids = table_rows(table, rows, max((table.pages_for(row.kv_len) for row in rows), default=0))
    return [listed[: table.pages_for(row.kv_len)] for listed, row in zip(ids.tolist(), rows, strict=True)]


class WriteMetadata:
    """The metadata of a case's writes, as `attnfuzz.kernels.cache_writes.writer_backend` describes it."""

    def __init__(self, case: Case, kv: PagedKv, tokens: NewTokens) -> None:
        self._case, self._kv, self._tokens = case, kv, tokens
        self._table = PageTable(case, kv)
        self._skips = case.padded_slot is PaddedSlot.NOWHERE

    def of(self, step: Step) -> Metadata:
        """Make the metadata of a step."""
        rows = self._rows(step)
        return {**self._of_tokens(step, len(rows)), **self._of_rows(rows)}

    def _rows(self, step: Step) -> list[Row]:
        """List the batch: a row for each request, then padded ones of one key; padded tokens belong to the last."""
        real = Row.real(step)
        padded = [Row(None, step.tokens_per_request, 1, 0)] * (step.padded_batch - len(real))
        return real + padded if self._skips else [*real, *padded, Row(None, 0, 1, 0)]

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        places = list(self._tokens.places(step))
        size, tokens = self._kv.page_size, step.padded_tokens
        at = torch.tensor([place.row for place in places], dtype=torch.int64)
        # Those of padded tokens; a token that is not stored has them as well.
        columns = {
            "slot_mapping": torch.full((tokens,), -1 if self._skips else 0, dtype=torch.int64),
            "positions": torch.zeros(tokens, dtype=torch.int32),
            "batch_indices": torch.full((tokens,), -1 if self._skips else rows - 1, dtype=torch.int32),
        }
        stored = ((place.page * size + place.offset, place.position, place.request) for place in places)
        for column, numbers in zip(columns.values(), zip(*stored, strict=True), strict=False):
            column[at] = torch.tensor(numbers, dtype=column.dtype)
        return columns

    def _of_rows(self, rows: Sequence[Row]) -> Metadata:
        size = self._kv.page_size
        lengths = [row.kv_len for row in rows]
        pages = page_lists(self._table, rows)
        columns = {
            "seq_lens": lengths,
            "cum_seq_lens_q": running_sum(row.q_len for row in rows),
            "kv_indptr": running_sum(map(len, pages)),
            "kv_indices": [page for owned in pages for page in owned],
            "kv_last_page_len": [(length - 1) % size + 1 if length else 0 for length in lengths],
        }
        table = table_rows(self._table, rows, self._table.width(max(lengths, default=1)))
        return {name: torch.tensor(each, dtype=torch.int32) for name, each in columns.items()} | {"block_tables": table}

    def largest(self, capture: Step) -> Metadata:
        """Return zeros of the sizes that replays of `capture` need."""
        graph = (capture.mode, capture.padded_tokens)
        replays = [step for step in self._case.steps if step.requests and (step.mode, step.padded_tokens) == graph]
        every = [self.of(step) for step in (capture, *replays)]
        shapes = {name: tuple(map(max, zip(*(each[name].shape for each in every), strict=True))) for name in every[0]}
        return {name: torch.zeros(shape, dtype=every[0][name].dtype) for name, shape in shapes.items()}
