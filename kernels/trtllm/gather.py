"""Moving query and output rows between packed and padded batches, as servers do around a draft extend."""

import torch

from attnfuzz.kernels.backend import Op


def gather_rows(out: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
    """Copy rows of `source` [n, ...] into `out` [len(rows), ...]; `rows` int64."""
    out.copy_(source[rows])


GATHER_ROWS = Op(name="gather_rows", function=gather_rows, writes=frozenset({"out"}), helps=True)
