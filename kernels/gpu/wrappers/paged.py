"""FlashInfer's wrappers for a paged KV cache, whose argument names differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch

from attnfuzz.kernels.gpu.wrappers.options import plan_options
from attnfuzz.kernels.gpu.wrappers.other_layers import layer_of
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper, WrapperKind
from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.kernels.planning.lengths import int32, running_sum
from attnfuzz.kernels.planning.plan import PageTable, Row, table_rows
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case


@dataclass(frozen=True)
class PageLists:
    """The metadata of a plan: tensors int32 on one device, in FlashInfer's terms (docs/tutorials/kv_layout).

    qo_indptr and kv_indptr [batch + 1]: request b has the query rows from qo_indptr[b] and the entries of kv_indices
    from kv_indptr[b] on, up to those of b + 1. last_page_len [batch]: tokens on a request's last page, 0 if it has no
    page, as in vLLM (FlashInferMetadataBuilder); flashinfer.page.get_seq_lens adds it to the tokens of full pages.
    seq_lens [batch]: the keys of each request, if the case gives them to plans.
    """

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    seq_lens: torch.Tensor | None = None

    @classmethod
    def of(cls, case: Case, table: PageTable, rows: Sequence[Row]) -> "PageLists":
        """Make the lists of a batch, on the host, of exactly its size. A padded row has dummy pages throughout."""
        size = case.geometry.page_size
        made = cls.made(
            [row.q_len for row in rows],
            pages_of(table, rows),
            [last_page_len(row.kv_len, size) for row in rows],
        )
        gives_lengths = ArgumentForm.KEY_LENGTHS_GIVEN in case.arguments
        return replace(made, seq_lens=int32([row.kv_len for row in rows])) if gives_lengths else made

    @classmethod
    def made(cls, q_lens: Sequence[int], pages: Sequence[Sequence[int]], last: Sequence[int]) -> "PageLists":
        """Make the lists of requests with these queries, pages, and tokens on the last page."""
        return cls(
            qo_indptr=int32(running_sum(q_lens)),
            kv_indptr=int32(running_sum(map(len, pages))),
            kv_indices=int32(list(chain.from_iterable(pages))),
            last_page_len=int32(last),
        )

    def placed(self, bench: Bench) -> "PageLists":
        """Copy the lists to guarded memory."""
        with bench.memory.at_once():
            return PageLists(**{name: bench.memory.copy(name, values) for name, values in self.tensors().items()})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the lists by name, without those that the case leaves out."""
        return {name: values for name, values in vars(self).items() if values is not None}

    @classmethod
    def reserve(cls, bench: Bench, batch: int, ids: torch.Tensor) -> "PageLists":
        """Allocate buffers of a graph for every later plan. `ids` are the initial contents of kv_indices."""

        def zeros(name: str, size: int) -> torch.Tensor:
            return bench.memory.tensor(name, (size,), torch.int32, fill=Fill.ZEROS)

        with bench.memory.at_once():
            return cls(
                qo_indptr=zeros("qo_indptr_buf", batch + 1),
                kv_indptr=zeros("kv_indptr_buf", batch + 1),
                kv_indices=bench.memory.copy("kv_indices_buf", ids),
                last_page_len=zeros("last_page_len_buf", batch),
            )


def pages_of(table: PageTable, rows: Sequence[Row]) -> list[list[int]]:
    """Return the page ids of each row: a list has no columns beyond them."""
    return [table_rows(table, [row], table.pages_for(row.kv_len))[0].tolist() for row in rows]


def last_page_len(kv_len: int, page_size: int) -> int:
    """Count the tokens on the last of the pages that hold `kv_len` tokens."""
    return (kv_len - 1) % page_size + 1 if kv_len else 0


@dataclass(frozen=True, kw_only=True)
class PagedForm(WrapperKind):
    """A wrapper for a paged KV cache. `dims` are its plan's names for the head dims, `fixed` are constant arguments."""

    dims: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)


_PREFILL_LISTS = {
    "qo_indptr": "qo_indptr",
    "kv_indptr": "paged_kv_indptr",
    "kv_indices": "paged_kv_indices",
    "last_page_len": "paged_kv_last_page_len",
}
_DECODE_LISTS = {"kv_indptr": "indptr", "kv_indices": "indices", "last_page_len": "last_page_len"}


def _prefill(backend: str, *, splits: bool, packed_masks: bool = False) -> PagedForm:
    return PagedForm(
        module="flashinfer.prefill",
        name="BatchPrefillWithPagedKVCacheWrapper",
        backend=backend,
        lists=_PREFILL_LISTS,
        buffers={ours: f"{theirs}_buf" for ours, theirs in _PREFILL_LISTS.items()},
        dims=("head_dim_qk", "head_dim_vo"),
        fixed={"causal": True},
        splits=splits,
        packed_masks=packed_masks,
    )


FA2_PAGED = _prefill("fa2", splits=True)
FA2_PAGED_PACKED = _prefill("fa2", splits=True, packed_masks=True)
FA3_PAGED = _prefill("fa3", splits=False)

DECODE = PagedForm(
    module="flashinfer.decode",
    name="BatchDecodeWithPagedKVCacheWrapper",
    backend="fa2",
    lists=_DECODE_LISTS,
    buffers={ours: f"paged_kv_{theirs}_buffer" for ours, theirs in _DECODE_LISTS.items()},
    dims=("head_dim",),
    zero_floats=True,
)
"""Without use_tensor_cores: the kernel on CUDA cores."""


class PagedWrapper(Wrapper):
    """A wrapper for a case's layer, whose logits are multiplied by `sm_scale`; for graphs if there are `buffers`."""

    _form: PagedForm

    def __init__(
        self,
        form: PagedForm,
        case: Case,
        bench: Bench,
        sm_scale: float,
        buffers: PageLists | None = None,
        mask_buffers: Mapping[str, torch.Tensor] | None = None,
        neighbour: Wrapper | None = None,
    ) -> None:
        geometry = case.geometry
        in_graph = None if buffers is None else vars(buffers)
        super().__init__(form, case, bench, geometry.kv_layout.value, in_graph, mask_buffers, neighbour)
        self.layer = layer_of(geometry, *form.dims, "page_size", "window_left", "logits_soft_cap")
        self.layer |= {"sm_scale": sm_scale, **form.fixed}
        self.layer |= plan_options(case, self.layer, in_graph=buffers is not None)

    def reserve_for(self, lists: PageLists) -> bool:
        """Call `reserve` for a batch whose lists lie on the host."""
        return self.reserve({**self._lists(lists), **self.layer})

    def plan_batch(
        self,
        lists: PageLists,
        placed: PageLists,
        mask: Mapping[str, Any] | None = None,
        layer: Mapping[str, Any] | None = None,
    ) -> None:
        """Plan a batch, whose lists lie on the host and in guarded memory, under `mask_arguments`.

        It is planned for the case's layer unless there is another one.
        """
        self.plan(self._lists(placed), self.layer if layer is None else layer, self._lists(lists), mask)

    def plan_another_layer(self, lists: PageLists, placed: PageLists) -> None:
        """Plan the batch for a layer with other logits, and without a causal mask if the plan has that argument."""
        others = {"causal": False} if "causal" in self.layer else {}
        self.plan_batch(lists, placed, layer={**self.layer, **others, "sm_scale": 2 * self.layer["sm_scale"]})

    def _lists(self, lists: PageLists) -> dict[str, torch.Tensor]:
        named = {theirs: getattr(lists, ours) for ours, theirs in self._form.lists.items()}
        if lists.seq_lens is not None:
            named["seq_lens"] = lists.seq_lens
        return named
