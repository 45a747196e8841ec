"""The run of FlashInfer's planned wrapper for block-sparse masks: one request, whose mask is planned in blocks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import torch

from attnfuzz.harness.dumps.planned_run import PACKED, PlannedRun
from attnfuzz.kernels.meaning import Breach, Parameter, RequestSpan
from attnfuzz.kernels.meaning.forms import WrongForm, parameters_of

_DOCUMENTED: Final = "FlashInfer, docstring of BlockSparseAttentionWrapper.plan"


@dataclass(frozen=True)
class PlannedBlocks(PlannedRun):
    """The run of BlockSparseAttentionWrapper: `M` queries on `N` keys, which they see in blocks of `R` by `C`."""

    indptr: str = "indptr"
    indices: str = "indices"

    caches: ClassVar[tuple[str, ...]] = ()

    refused: ClassVar[tuple[str, ...]] = (
        "packed_mask",
        "causal",
        "block_mask",
        "kv_block_lens",
        "q2k_indices",
        *("scale_q", "scale_k", "scale_v"),
    )

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        found = parameters_of(arguments, PACKED, ("query", "key", "value", "out", "indptr", "indices"), tuple("MNRC"))
        for name in "MNRC":
            if not isinstance(arguments.get(name), int) or arguments[name] < 1:
                raise WrongForm(name, f"{name} is not a positive number")
        return found

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the only request: all queries, and all keys."""
        return (RequestSpan(0, arguments["M"], arguments["N"]),)

    def mask(self, arguments: Mapping[str, Any]) -> torch.Tensor:
        """Return the keys that each query sees, bool [M, N], of a call that breaks nothing."""
        rows, columns = arguments["R"], arguments["C"]
        starts = arguments["indptr"].tolist()
        seen = torch.zeros((len(starts) - 1) * rows, arguments["N"], dtype=torch.bool)
        full = torch.ones(rows, columns, dtype=torch.bool)
        masks = arguments.get("mask")
        for row, at, column in self._blocks(arguments):
            block = full if masks is None else masks[at].bool()
            seen[row * rows :][:rows, column * columns :][:, :columns] = block
        return seen[: arguments["M"]]

    def _blocks(self, arguments: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
        """Yield the row, the place among the masks, and the column of each planned block."""
        columns = arguments["indices"].tolist()
        for row, (begin, stop) in enumerate(pairwise(arguments["indptr"].tolist())):
            yield from ((row, at, columns[at]) for at in range(begin, stop))

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the first mistake in the planned lists, or in the size of a tensor."""
        text = next(_mistakes(arguments, arguments["indptr"].tolist()), None)
        if text is None:
            ends = arguments["N"] // arguments["C"]
            wild = [(row, column) for row, _, column in self._blocks(arguments) if not 0 <= column < ends]
            if not wild:
                return ()
            text = f"row {wild[0][0]} was planned with block {wild[0][1]} of keys, and there are {ends}"
        return (Breach((self.indptr, self.indices), text, _DOCUMENTED),)


def _mistakes(arguments: Mapping[str, Any], starts: list[int]) -> Iterator[str]:
    queries, keys = arguments["M"], arguments["N"]
    if keys % arguments["C"]:
        yield f"N is {keys}, which is not divisible by C, {arguments['C']}"
    rows = -(-queries // arguments["R"])
    if len(starts) != rows + 1:
        yield f"indptr has {len(starts)} entries, where {rows} rows of blocks need {rows + 1}"
    blocks = len(arguments["indices"])
    if starts[0] != 0 or starts != sorted(starts) or starts[-1] > blocks:
        yield f"indptr is {starts}, which does not ascend from 0 to at most the {blocks} planned blocks"
    mask = arguments.get("mask")
    due = [starts[-1], arguments["R"], arguments["C"]]
    if mask is not None and (list(mask.shape[1:]) != due[1:] or len(mask) < due[0]):
        yield f"mask is {list(mask.shape)}, but must be {due}"
    for name, size in (("query", queries), ("key", keys), ("value", keys)):
        if len(arguments[name]) != size:
            yield f"{name} has {len(arguments[name])} rows, and {size} were planned"
