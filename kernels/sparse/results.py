"""The results of the ops of a step, beside the right ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from attnfuzz.kernels.interface.backend import NO_HOLE, JudgedOnHost, Output, WrittenCache, WrittenTensor
from attnfuzz.kernels.interface.compared import ComparedLists
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.indexer import Scoring
from attnfuzz.reference.sparse.lists import Selection


@dataclass(frozen=True)
class Scored:
    """Scores float32 [rows, width] that `kernel`, with this `noise`, wrote over `before`, beside the right ones."""

    kernel: str
    logits: torch.Tensor
    before: torch.Tensor
    scoring: Scoring
    noise: NoiseModel
    tokens: tuple[tuple[int, int], ...]

    def written(self, alpha: float) -> WrittenCache:
        """Return the scores with bounds that a right kernel passes with probability `alpha` at most."""
        low, high = self.scoring.bounds(self.noise, alpha)
        return written_rows(self.kernel, "logits", self.before, self.logits, low, high, self.tokens)


@dataclass(frozen=True)
class Selected:
    """Lists int32 [rows, k] that `kernel` wrote, beside the scores that it selects from. `place` is their name."""

    kernel: str
    place: str
    lists: torch.Tensor
    selection: Selection
    tokens: tuple[tuple[int, int], ...]

    @property
    def compared(self) -> ComparedLists:
        """The lists beside the scores of each row."""
        rows = range(len(self.lists))
        names = None
        if self.selection.names is not None:
            names = tuple(each[: self.selection.lengths[row]] for row, each in enumerate(self.selection.names))
        return ComparedLists(self.place, self.lists, tuple(map(self.selection.of_row, rows)), names)


@dataclass(frozen=True)
class SparselyAttended:
    """The output of `kernel`, whose queries have a list of keys each."""

    kernel: str
    output: Output


Part = Scored | Selected | SparselyAttended | WrittenCache


@dataclass(frozen=True)
class SparseResult(JudgedOnHost):
    """The results of the ops of a step, in the order in which they ran on right inputs.

    `returned` describes values that functions returned, which are ignored, by the names of their ops.
    """

    parts: tuple[Part, ...]
    returned: Mapping[str, str] = field(default_factory=dict)


def written_rows(
    kernel: str,
    name: str,
    before: torch.Tensor,
    after: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    tokens: tuple[tuple[int, int], ...],
) -> WrittenCache:
    """Return rows [rows, width] with their bounds: every element is due."""
    rows = torch.arange(after.shape[0])
    exact = high is low
    low = low.to(after.device)[:, None]
    high = low if exact else high.to(after.device)[:, None]
    tensor = WrittenTensor(
        name,
        before.view(torch.int32)[None, :, None],
        after.view(torch.int32)[None, :, None],
        at=torch.stack((torch.zeros_like(rows), rows)),
        low=low,
        high=high,
        free=torch.zeros(2, 0, dtype=torch.int64),
        hole=NO_HOLE,
        paged=False,
    )
    return WrittenCache((tensor,), tokens, kernel)
