"""The output tensors of a step's attention."""

import math
from dataclasses import dataclass

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.reference.case import Case


def place_out(case: Case, bench: Bench, rows: int, *, dim: int | None = None, prefix: str = "") -> torch.Tensor:
    """Return an output [rows, q_heads, dim] in the geometry's dtype, initialised as the case requires.

    The default of `dim` is the geometry's.
    """
    shape = (rows, case.geometry.q_heads, case.geometry.head_dim_vo if dim is None else dim)
    return bench.memory.tensor(f"{prefix}out", shape, case.geometry.dtype.torch_dtype, fill=Fill.OUTPUT)


@dataclass(frozen=True)
class Results:
    """Outputs: out [rows, q_heads, dim] in the geometry's dtype, and lse [rows, q_heads] float32."""

    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def place(cls, case: Case, bench: Bench, rows: int, *, dim: int | None = None, prefix: str = "") -> "Results":
        """Return results in guarded memory, named `prefix` + "out" and "lse", initialised as the case requires."""
        with bench.memory.at_once():
            out = place_out(case, bench, rows, dim=dim, prefix=prefix)
            return cls(out, bench.memory.tensor(f"{prefix}lse", out.shape[:2], torch.float32, fill=Fill.OUTPUT))

    def __getitem__(self, rows: slice) -> "Results":
        """Return a view of some rows."""
        return Results(self.out[rows], self.lse[rows])

    def clear(self) -> None:
        """Write the result of attention without keys: 0 and -inf."""
        self.out.zero_()
        self.lse.fill_(-math.inf)

    def renew(self, bench: Bench) -> None:
        """Restore the initial contents that the case requires, before the next write."""
        bench.memory.renew(self.out)
        bench.memory.renew(self.lse)
