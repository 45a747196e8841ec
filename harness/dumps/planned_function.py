"""The run of a planned wrapper as one function, which takes the arguments of the plan as well.

Engines' releases run on such functions where the library's own wrappers are missing (`kernels.releases.planned_runs`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from attnfuzz.harness.dumps.planned_run import PlannedRun
from attnfuzz.kernels.meaning import Breach, RequestSpan

_PLAN: Final = "FlashInfer, docs/tutorials/kv_layout and docstrings of plan: it is called for each batch, before run"
_ROWS: Final = "FlashInfer compares the rows of q with the planned ones before the launch"


@dataclass(frozen=True)
class PlannedFunction(PlannedRun):
    """A run whose arguments are those of a prefill's plan and run, and copies of the lists as they were planned."""

    indptr: str = "paged_kv_indptr"
    queries: str = "qo_indptr"
    indices: str = "paged_kv_indices"
    last: str = "paged_kv_last_page_len"
    causal: bool = False

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the requests of the plan where the kernel takes lengths and pages from it alone, else the batch's."""
        if not arguments.get("by_plan"):
            return super().spans(arguments)
        size, ids = self._pool(arguments).page_size, arguments[self.indices].tolist()
        rows = pairwise(arguments[self.queries].tolist())
        starts, lengths = (arguments[name].tolist() for name in ("planned_indptr", "planned_lengths"))
        return tuple(
            RequestSpan(
                first,
                end - first,
                length,
                pages=tuple(ids[begin : begin - (-length // size)]),
                inside=0 <= begin <= begin - (-length // size) <= len(ids),
            )
            for (first, end), begin, length in zip(rows, starts, lengths, strict=False)
        )

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the first mismatch of a plan and its run, or the first page id that lies outside of the pool."""
        found = (*self._rows(arguments), *self._lists(arguments))
        return found[:1] or super().breaches(arguments)

    def _rows(self, arguments: Mapping[str, Any]) -> Iterator[Breach]:
        rows, planned = arguments["query"].shape[0], arguments.get("planned_rows")
        if planned is not None and planned != rows:
            yield Breach(("q", self.queries), f"q has {rows} rows, and {planned} were planned", _ROWS)
        for request, span in enumerate(self.spans(arguments)):
            if span.q_len < 0 or span.first_row < 0 or span.first_row + span.q_len > rows:
                text = f"{self.queries} gives request {request} rows {span.first_row} to {span.first_row + span.q_len}"
                yield Breach((self.queries, "q"), f"{text}, and q has {rows}", _PLAN, request)

    def _lists(self, arguments: Mapping[str, Any]) -> Iterator[Breach]:
        """Yield requests whose pages or lengths are not those that were planned, and pages behind the list."""
        if not self.indices:
            return
        size, count = self._pool(arguments).page_size, len(arguments[self.indices])
        starts, last = arguments[self.indptr].tolist(), arguments[self.last].tolist()
        planned = arguments["planned_lengths"].tolist()
        for request, ((begin, end), rest) in enumerate(zip(pairwise(starts), last, strict=False)):
            if not 0 <= begin <= end <= count:
                text = f"request {request} has the entries {begin} to {end} of {self.indices}, which has {count}"
                yield Breach((self.indptr, self.indices), text, _PLAN, request)
            elif request >= len(planned):
                yield Breach((self.indptr,), f"request {request} was not planned", _PLAN, request)
            elif (length := self._length(end - begin, rest, size)) > -(-planned[request] // size) * size:
                text = f"request {request} has {length} keys, and {planned[request]} were planned"
                yield Breach((self.indptr, self.last), text, _PLAN, request)


@dataclass(frozen=True)
class PackedFunction(PlannedFunction):
    """A run on packed keys."""

    indptr: str = "kv_indptr"
    indices: str = ""
    last: str = ""

    def leaves_empty_rows(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the call says so."""
        return bool(arguments.get("leaves_empty_rows"))
