"""The pages of a batch as FlashInfer's wrappers want them: a list of all ids, and where each request's begin in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Bench, Fill
from attnfuzz.kernels.lengths import int32, running_sum
from attnfuzz.kernels.plan import PageTable, Row, table_rows
from attnfuzz.reference.case import Case


@dataclass(frozen=True)
class PageLists:
    """What a wrapper is planned on: tensors int32 on one device, in FlashInfer's words (docs/tutorials/kv_layout).

    qo_indptr and kv_indptr [batch + 1]: request b has the query rows from qo_indptr[b] and the entries of kv_indices
    from kv_indptr[b] on, up to those of b + 1. last_page_len [batch]: tokens on a request's last page, 0 if it has no
    page, as vLLM says it (FlashInferMetadataBuilder); flashinfer.page.get_seq_lens adds it to what full pages hold.
    """

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor

    @classmethod
    def of(cls, case: Case, table: PageTable, rows: Sequence[Row]) -> "PageLists":
        """Those of a batch, on the host, in tensors of exactly its size. A padded row has the dummy page throughout."""
        counts = [table.pages_for(row.kv_len) for row in rows]
        # Each row as wide as its own pages: what a table has beyond them is not in a list.
        lines = [table_rows(table, [row], count) for row, count in zip(rows, counts, strict=True)]
        owned = [page for line in lines for page in line.flatten().tolist()]
        size = case.geometry.page_size
        return cls(
            qo_indptr=int32(running_sum(row.q_len for row in rows)),
            kv_indptr=int32(running_sum(counts)),
            kv_indices=int32(owned),
            last_page_len=int32([last_page_len(row.kv_len, size) for row in rows]),
        )

    def placed(self, bench: Bench) -> "PageLists":
        """The same in guarded memory."""
        return PageLists(**{name: bench.memory.copy(name, values) for name, values in vars(self).items()})

    @classmethod
    def reserve(cls, bench: Bench, batch: int, ids: torch.Tensor) -> "PageLists":
        """Buffers of a graph, into which every plan is copied. `ids` are what kv_indices holds before the first."""

        def zeros(name: str, size: int) -> torch.Tensor:
            return bench.memory.tensor(name, (size,), torch.int32, fill=Fill.ZEROS)

        return cls(
            qo_indptr=zeros("qo_indptr_buf", batch + 1),
            kv_indptr=zeros("kv_indptr_buf", batch + 1),
            kv_indices=bench.memory.copy("kv_indices_buf", ids),
            last_page_len=zeros("last_page_len_buf", batch),
        )


def last_page_len(kv_len: int, page_size: int) -> int:
    """Tokens on the last of the pages that hold `kv_len` tokens."""
    return (kv_len - 1) % page_size + 1 if kv_len else 0
