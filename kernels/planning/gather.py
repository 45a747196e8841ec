"""Moving query and output rows between batches, as servers do around a draft extend."""

import torch

from attnfuzz.kernels.interface.backend import Op


def gather_rows(out: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
    """Copy rows of `source` [n, ...] into `out` [len(rows), ...]; `rows` int64."""
    out.copy_(source[rows])


def put_rows(out: torch.Tensor, rows: torch.Tensor, source: torch.Tensor) -> None:
    """Copy `source` [len(rows), ...] into rows of `out` [n, ...]; `rows` int64."""
    out.index_copy_(0, rows, source)


GATHER_ROWS = Op(name="gather_rows", function=gather_rows, writes=frozenset({"out"}), helps=True)
PUT_ROWS = Op(name="put_rows", function=put_rows, writes=frozenset({"out"}), helps=True, plans=True)
"""Of results that a kernel has written elsewhere: these are the kernel's, not this op's."""
