"""Runs of FlashInfer's planned wrappers: which keys the arguments of plan and run name together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace

from attnfuzz.harness.calls.object_calls import needs
from attnfuzz.kernels.interface.library_call import PLANS
from attnfuzz.kernels.meaning import Breach, Parameter, RequestSpan
from attnfuzz.kernels.meaning.call_pool import pool_forms, pool_of
from attnfuzz.kernels.meaning.entry_point import Role
from attnfuzz.kernels.meaning.forms import Form, parameters_of
from attnfuzz.reference.calls import REPLAY, Argument, CallCase, View

CANONICAL: Final[Mapping[str, str]] = {"q": "query", "paged_kv_cache": "kv_cache", "k": "key", "v": "value"}
"""Names of a run's tensors that other entry points call otherwise."""

_REFUSED: Final = ("custom_mask", "packed_custom_mask", "lse_base", "lse_layout")
"""Options that an answer can't express."""

_DOCUMENTED: Final = "FlashInfer, docs/tutorials/kv_layout: page table of all requests"


@dataclass(frozen=True)
class PlannedRun:
    """The run of one wrapper class, with its plan's names of lists; without `indices`, keys are packed.

    Without `queries`, each request has as many of them, by q_len_per_req.
    """

    indptr: str
    queries: str = ""
    indices: str = ""
    last: str = ""

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        forms = {
            "query": Form(Role.QUERY, (("tokens", "q heads", "qk dim"),)),
            "out": Form(Role.OUT, (("tokens", "q heads", "vo dim"),)),
            "lse": Form(Role.LSE, (("tokens", "q heads"),)),
            "sinks": Form(Role.SINKS, (("q heads",),)),
        }
        if self.indices:
            forms |= pool_forms(arguments, str(arguments.get("kv_layout", "NHD")))
        else:
            forms["key"] = Form(Role.KEY, (("kv tokens", "kv heads", "qk dim"),))
            forms["value"] = Form(Role.VALUE, (("kv tokens", "kv heads", "vo dim"),))
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
            page_size = pool_of(arguments, str(arguments.get("kv_layout", "NHD"))).page_size
            inside = 0 <= begin <= stop <= len(ids) and request < len(last)
            # flashinfer/page.cuh, paged_kv_t::get_length.
            length = max(stop - begin - 1, 0) * page_size + (last[request] if inside and stop > begin else 0)
            pages = tuple(ids[begin:stop][: -(-length // page_size)]) if inside else ()
            yield RequestSpan(first, end - first, length, pages=pages, inside=inside)

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the first planned page id that lies outside of the pool."""
        if not self.indices:
            return ()
        pages = pool_of(arguments, str(arguments.get("kv_layout", "NHD"))).pages
        for request, span in enumerate(self.spans(arguments)):
            wild = [page for page in span.pages if not 0 <= page < pages]
            if wild:
                text = f"request {request} was planned with page id {wild[0]}, and the pool has {pages} pages"
                return (Breach((self.indices,), text, _DOCUMENTED, request),)
        return ()


_PREFILL: Final = PlannedRun("paged_kv_indptr", "qo_indptr", "paged_kv_indices", "paged_kv_last_page_len")
_DECODE: Final = PlannedRun("indptr", "", "indices", "last_page_len")

PLANNED_RUNS: Final[Mapping[str, PlannedRun]] = {
    "BatchPrefillWithPagedKVCacheWrapper.run": _PREFILL,
    "BatchAttentionWithAttentionSinkWrapper.run": _PREFILL,
    "BatchDecodeWithPagedKVCacheWrapper.run": _DECODE,
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper.run": _DECODE,
    "BatchPrefillWithRaggedKVCacheWrapper.run": PlannedRun("kv_indptr", "qo_indptr"),
}


def with_plan(case: CallCase, index: int) -> CallCase:
    """Return the case with all that a run reads among its arguments: those of its plan and constructor as well.

    A replay becomes the run that its graph has captured. Other calls are unchanged. Names and scales are those of the
    functions without a plan. Raises ValueError for a run that an answer can't express.
    """
    call = case.calls[index]
    if call.op == REPLAY:
        captured = [each for each in case.calls[:index] if each.graph == call.graph]
        if len(captured) != 1:
            raise ValueError("its graph has captured several calls")
        call = replace(captured[0], writes=call.writes)
    if call.op not in PLANNED_RUNS:
        return case
    before = [case.calls[n] for n in sorted(needs(case.calls, index))]
    plans = [each for each in before if each.op.rpartition(".")[2] in PLANS]
    makers = [each for each in before if each.makes and not each.on]
    if not plans or not makers:
        raise ValueError("its object was not planned")
    known = makers[0].arguments | plans[-1].arguments
    known |= {name: value for name, value in call.arguments.items() if value is not None and name not in call.held}
    refused = [name for name in _REFUSED if known.get(name) is not None]
    if refused:
        raise ValueError(f"its {refused[0]} can't be part of an answer")
    arguments = {CANONICAL.get(name, name): value for name, value in known.items()}
    if known.get("kv_layout") == "HND":
        arguments |= {name: _tokens_first(arguments[name]) for name in ("key", "value") if name in arguments}
    arguments |= _scales(known)
    calls = (*case.calls[:index], replace(call, arguments=arguments), *case.calls[index + 1 :])
    return replace(case, calls=calls)


def _tokens_first(value: Argument) -> Argument:
    assert isinstance(value, View)
    (heads, tokens, dim), (by_head, by_token, by_element) = value.shape, value.stride
    return replace(value, shape=(tokens, heads, dim), stride=(by_token, by_head, by_element))


def _scales(known: Mapping[str, Argument]) -> dict[str, float]:
    query = known["q"]
    assert isinstance(query, View)
    factors = {"sm_scale": query.shape[-1] ** -0.5, "q_scale": 1.0, "k_scale": 1.0, "v_scale": 1.0}
    for name in factors:
        value = known.get(name)
        if value is not None:
            if not isinstance(value, int | float):
                raise ValueError(f"its {name} is no number")
            factors[name] = value
    return {
        "bmm1_scale": factors["sm_scale"] * factors["q_scale"] * factors["k_scale"],
        "bmm2_scale": factors["v_scale"],
    }
