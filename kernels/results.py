"""The tensors that a step's attention is written to."""

import math
from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Bench, Fill
from attnfuzz.reference.case import Case


def place_out(case: Case, bench: Bench, rows: int, dim: int, *, prefix: str = "") -> torch.Tensor:
    """The output [rows, q_heads, dim] alone, in the geometry's dtype, that holds what the case lets outputs hold."""
    shape = (rows, case.geometry.q_heads, dim)
    return bench.memory.tensor(f"{prefix}out", shape, case.geometry.dtype.torch_dtype, fill=Fill.OUTPUT)


@dataclass(frozen=True)
class Results:
    """Outputs: out [rows, q_heads, dim] in the geometry's dtype, and lse [rows, q_heads] float32."""

    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def place(cls, case: Case, bench: Bench, rows: int, dim: int, *, prefix: str = "") -> "Results":
        """Results in guarded memory, named `prefix` + "out" and "lse", that hold what the case lets outputs hold."""
        out = place_out(case, bench, rows, dim, prefix=prefix)
        return cls(out, bench.memory.tensor(f"{prefix}lse", out.shape[:2], torch.float32, fill=Fill.OUTPUT))

    def __getitem__(self, rows: slice) -> "Results":
        """A view of some rows."""
        return Results(self.out[rows], self.lse[rows])

    def clear(self) -> None:
        """Write what attention to nothing gives: 0 and -inf."""
        self.out.zero_()
        self.lse.fill_(-math.inf)

    def renew(self, bench: Bench) -> None:
        """Let them hold again what the case lets outputs hold, before they are written once more."""
        bench.memory.renew(self.out)
        bench.memory.renew(self.lse)
