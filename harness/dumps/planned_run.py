"""The run of one of FlashInfer's planned wrappers, whose arguments are those of its plan too."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import torch

from attnfuzz.kernels.meaning import Breach, Parameter, RequestSpan
from attnfuzz.kernels.meaning.call_pool import Pool, pool_forms, pool_of
from attnfuzz.kernels.meaning.entry_point import Role
from attnfuzz.kernels.meaning.forms import Form, parameters_of

_CANONICAL: Final[Mapping[str, str]] = {"q": "query", "paged_kv_cache": "kv_cache", "k": "key", "v": "value"}

PACKED: Final[Mapping[str, Form]] = {
    "query": Form(Role.QUERY, (("tokens", "q heads", "qk dim"),)),
    "key": Form(Role.KEY, (("kv tokens", "kv heads", "qk dim"),)),
    "value": Form(Role.VALUE, (("kv tokens", "kv heads", "vo dim"),)),
    "out": Form(Role.OUT, (("tokens", "q heads", "vo dim"),)),
    "lse": Form(Role.LSE, (("tokens", "q heads"),)),
    "sinks": Form(Role.SINKS, (("q heads",),)),
}
"""The tensors of a run on packed keys."""

_DOCUMENTED: Final = "FlashInfer, docs/tutorials/kv_layout: page table of all requests"


@dataclass(frozen=True)
class PlannedRun:
    """The run of one wrapper class, with its plan's names of lists; without `indices`, keys are packed.

    Without `queries`, each request has as many of them, by q_len_per_req. `causal`: whether a plan is that does not say
    so.
    """

    indptr: str
    queries: str = ""
    indices: str = ""
    last: str = ""
    causal: bool = True

    caches: ClassVar[tuple[str, ...]] = ("paged_kv_cache",)
    """The arguments of a run that hold the pool, in the order of its parts."""

    refused: ClassVar[tuple[str, ...]] = ("custom_mask", "packed_custom_mask", "lse_base", "lse_layout")
    """Options that an answer can't express."""

    def parts(self, known: Mapping[str, Any]) -> tuple["PlannedRun", ...]:
        """Return the parts that are judged one by one, by all arguments of constructor, plan and run."""
        return (self,)

    def own(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments that this part reads, by the names that they have in a run without parts."""
        return known

    def canonical(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Name the arguments of constructor, plan and run as other entry points do."""
        return {"causal": self.causal} | {_CANONICAL.get(name, name): value for name, value in known.items()}

    def implied(self, plan: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that a recorded plan leaves out, and a case's plan of the same lists must name."""
        return {}

    def mask(self, arguments: Mapping[str, Any]) -> torch.Tensor | None:
        """Return None: no request has a mask of its own."""
        return None

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        forms = dict(PACKED)
        if self.indices:
            del forms["key"], forms["value"]
            forms |= pool_forms(arguments, str(arguments.get("kv_layout", "NHD")))
        return parameters_of(arguments, forms, required=("query", "out", self.indptr))

    def leaves_empty_rows(self, arguments: Mapping[str, Any]) -> bool:
        """Return False: a wrapper clears the rows of requests without keys."""
        return False

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the requests that were planned."""
        starts = arguments[self.indptr].tolist()
        if self.queries:
            rows = list(pairwise(arguments[self.queries].tolist()))
        else:
            each = arguments.get("q_len_per_req", 1)
            rows = [(first, first + each) for first in range(0, (len(starts) - 1) * each, each)]
        if len(rows) != len(starts) - 1:
            raise ValueError(f"{self.indptr} and {self.queries} have different numbers of requests")
        return tuple(self._spans(arguments, rows, starts))

    def _spans(
        self, arguments: Mapping[str, Any], rows: list[tuple[int, int]], starts: list[int]
    ) -> Iterator[RequestSpan]:
        for request, ((first, end), (begin, stop)) in enumerate(zip(rows, pairwise(starts), strict=True)):
            if not self.indices:
                yield RequestSpan(first, end - first, stop - begin, first_key=begin)
                continue
            ids, last = arguments[self.indices].tolist(), arguments[self.last].tolist()
            page_size = self._pool(arguments).page_size
            inside = 0 <= begin <= stop <= len(ids) and request < len(last)
            length = self._length(stop - begin, last[request], page_size) if inside else 0
            pages = tuple(ids[begin:stop][: -(-length // page_size)]) if inside else ()
            yield RequestSpan(first, end - first, length, pages=pages, inside=inside)

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the first planned page id that lies outside of the pool."""
        if not self.indices:
            return ()
        pages = self._pool(arguments).pages
        for request, span in enumerate(self.spans(arguments)):
            wild = [page for page in span.pages if not 0 <= page < pages]
            if wild:
                text = f"request {request} was planned with page id {wild[0]}, and the pool has {pages} pages"
                return (Breach((self.indices,), text, _DOCUMENTED, request),)
        return ()

    def _length(self, pages: int, last: int, page_size: int) -> int:
        """Return the keys on pages of a request. flashinfer/page.cuh, paged_kv_t::get_length."""
        return (pages - 1) * page_size + last if pages else 0

    def _pool(self, arguments: Mapping[str, Any]) -> Pool:
        return pool_of(arguments, str(arguments.get("kv_layout", "NHD")))
