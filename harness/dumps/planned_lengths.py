"""The run of a planned wrapper of FlashInfer whose plan has the KV length of each request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from attnfuzz.harness.dumps.planned_run import PlannedRun
from attnfuzz.kernels.meaning import Breach

_COUNTS: Final = "FlashInfer, mla/_batch_mla/_planning.py: page counts must equal ceil(kv_len_arr / page_size)"


@dataclass(frozen=True)
class PlannedLengths(PlannedRun):
    """The run of BatchAttention, or of another class that is planned with lists of pages and lengths."""

    indptr: str = "kv_indptr"
    queries: str = "qo_indptr"
    indices: str = "kv_indices"
    last: str = "kv_len_arr"
    causal: bool = False

    caches: ClassVar[tuple[str, ...]] = ("kv_cache",)

    def _length(self, pages: int, last: int, page_size: int) -> int:
        return last

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the first request with more keys than pages, or the first planned page id outside of the pool."""
        size = self._pool(arguments).page_size
        for request, span in enumerate(self.spans(arguments)):
            if span.kv_len > len(span.pages) * size:
                text = (
                    f"request {request} was planned with {span.kv_len} keys, and its {len(span.pages)} pages hold "
                    f"{len(span.pages) * size}"
                )
                return (Breach((self.last, self.indptr), text, _COUNTS, request),)
        return super().breaches(arguments)
