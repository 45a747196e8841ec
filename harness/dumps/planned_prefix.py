"""The run of FlashInfer's planned wrappers for one prefix of the whole batch, which is in tensors of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from attnfuzz.harness.dumps.planned_run import PACKED, PlannedRun
from attnfuzz.kernels.meaning import Parameter, RequestSpan
from attnfuzz.kernels.meaning.call_pool import pool_forms
from attnfuzz.kernels.meaning.forms import parameters_of

_CANONICAL: Final[Mapping[str, str]] = {
    "q": "query",
    "k_shared": "key",
    "v_shared": "value",
    "unique_kv_cache": "kv_cache",
}


@dataclass(frozen=True)
class PlannedPrefix(PlannedRun):
    """The run of Batch{Decode,Prefill}WithSharedPrefixPagedKVCacheWrapper.

    The keys of a request are those of the prefix, then those on its pages. Without `queries`, each request has one.
    """

    caches: ClassVar[tuple[str, ...]] = ("unique_kv_cache",)

    def canonical(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Name the arguments of constructor, plan and run as other entry points do."""
        return {"causal": self.causal} | {_CANONICAL.get(name, name): value for name, value in known.items()}

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        forms = {**PACKED, **pool_forms(arguments, str(arguments.get("kv_layout", "NHD")))}
        return parameters_of(arguments, forms, required=("query", "key", "value", "kv_cache", "out", self.indptr))

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the requests that were planned, with the keys of the prefix. Raises ValueError for too few others."""
        spans, prefix = super().spans(arguments), arguments["key"].shape[0]
        if prefix and any(span.inside and span.q_len > span.kv_len for span in spans):
            raise ValueError("a request has more queries than keys behind the prefix, which can't be part of an answer")
        return tuple(replace(span, kv_len=span.kv_len + prefix) for span in spans)
