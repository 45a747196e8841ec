"""FlashInfer's top-k for sparse attention: the selection alone, and fused with a page table or with offsets."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from attnfuzz.kernels.cuda import guards, visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import call
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.reference.device import Device
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import Scores, SparseOp

ARCHS: Final = frozenset({Arch.HOPPER})
_MODULE: Final = "flashinfer.topk"


def _spec() -> Any:
    from flashinfer.jit.topk import gen_topk_module  # noqa: PLC0415 - only where it is compiled

    return gen_topk_module()


TOP_K_MODULE: Final = Module("top-k", _spec)


def _prepare(progress: Callable[[str], None]) -> None:
    modules.build((TOP_K_MODULE,), progress)


@dataclass(frozen=True, kw_only=True)
class CompiledSparseBackend(SparseBackend):
    """A backend on functions of FlashInfer, which `needs` packages and modules, for GPUs of `archs`."""

    needed: tuple[Module, ...]
    archs: frozenset[Arch]
    needs: tuple[str, ...] = ("flashinfer",)

    @property
    def libraries(self) -> tuple[tuple[Path, ...], ...]:
        """Those of this project's libraries that its cases need, each as its source files."""
        return ((guards.SOURCE,),)

    def modules(self) -> tuple[Module, ...]:
        """List the modules that its functions need."""
        return self.needed


def top_k(
    *, scores: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, row_starts: torch.Tensor | None = None
) -> None:
    """Select from rows in which columns that they do not see are -inf, as a caller of `top_k` without lengths does.

    Positions count from a row's start, and -1 stands for columns that it does not see.
    """
    rows, width = scores.shape
    starts = torch.zeros_like(lengths) if row_starts is None else row_starts
    columns = torch.arange(width, device=scores.device)
    seen = (columns >= starts[:, None]) & (columns < (starts + lengths)[:, None])
    k = min(indices.shape[1], width)
    indices.fill_(-1)
    if rows and k:
        masked = torch.where(seen, scores, -torch.inf)
        _, chosen = call(_MODULE, "top_k", input=masked, k=k)
        found = torch.where(seen.gather(1, chosen), chosen - starts[:, None], -1)
        # Columns that a row does not see come last, in any order.
        order = (found < 0).int().sort(dim=1, stable=True).indices
        indices[:, :k] = found.gather(1, order).int()


def top_k_slots(
    *,
    scores: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    requests: torch.Tensor,
    page_size: int,
    slots: torch.Tensor,
    row_starts: torch.Tensor | None = None,
) -> None:
    """List slots, through a page table of the request of each row."""
    call(
        _MODULE,
        "top_k_page_table_transform",
        input=scores,
        src_page_table=block_table,
        lengths=lengths,
        k=slots.shape[1],
        row_to_batch=requests,
        row_starts=row_starts,
        page_table_row_starts=None if row_starts is None else torch.zeros_like(row_starts),
        page_size=page_size,
        out=slots,
    )


def top_k_offsets(
    *,
    scores: torch.Tensor,
    lengths: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    row_starts: torch.Tensor | None = None,
) -> None:
    """List places in the packed keys of a prefill."""
    slots.copy_(
        call(
            _MODULE,
            "top_k_ragged_transform",
            input=scores,
            offsets=offsets,
            lengths=lengths,
            k=slots.shape[1],
            row_starts=row_starts,
        )
    )


FLASHINFER_TOP_K: Final = CompiledSparseBackend(
    label="flashinfer:top_k",
    needed=(TOP_K_MODULE,),
    archs=ARCHS,
    functions={"top_k": top_k, "top_k_slots": top_k_slots, "top_k_offsets": top_k_offsets},
    capability=SparseCapability(
        device=Device.CUDA,
        chains=((SparseOp.TOP_K, SparseOp.TRANSFORM), (SparseOp.TOP_K,)),
        fused=True,
        replays=False,
        # "Must be a positive power of two" (top_k_page_table_transform).
        page_sizes=(1, 4, 8, 16, 32, 64, 128),
        # Its docstrings promise no order of NaN.
        scores=tuple(each for each in Scores if each is not Scores.NAN),
        gaps=False,
    ),
    load=_prepare,
    why_not=partial(visible.missing, ARCHS, ("flashinfer",)),
)
