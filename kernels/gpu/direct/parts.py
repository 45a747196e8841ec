"""Attention to parts of the keys, as a merge gets it, with contents that must not affect the merge.

A part in which a row sees no keys has an LSE of -inf there, and thus a weight of 0: its output may be any number. Rows
that a mask excludes from a merge may hold anything, NaN too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.arguments.form_tables import largest_of
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.planning.results import Results


@dataclass(frozen=True)
class StatesPart:
    """One part on the host, in fp64: out [rows, heads, dim] and lse [rows, heads] in base 2.

    `present` [rows] bool are the rows of requests that have keys in the part, even if a row sees none of them.
    """

    out: torch.Tensor
    lse: torch.Tensor
    present: torch.Tensor

    @classmethod
    def empty(cls, rows: int, heads: int, dim: int) -> "StatesPart":
        """Return a part without keys."""
        results = Results(torch.zeros(rows, heads, dim, dtype=torch.float64), torch.zeros(rows, heads).double())
        results.clear()
        return cls(results.out, results.lse, torch.zeros(rows, dtype=torch.bool))


def states_of(parts: Sequence[StatesPart], dtype: torch.dtype) -> list[Results]:
    """Return the outputs in `dtype` and the LSEs in float32; outputs of weight 0 are the largest numbers of `dtype`.

    Where no part has keys, there are no weights, and all outputs stay 0: a merge may return one of them (vLLM's
    merge_attn_states.cu returns the prefix's).
    """
    some = torch.stack([part.lse for part in parts]).isfinite().any(dim=0)
    states = [Results(part.out.to(dtype), part.lse.float()) for part in parts]
    for state in states:
        state.out[state.lse.isneginf() & some] = largest_of(dtype, state.out.shape[2])
    return states


def excluded(state: Results, merged: torch.Tensor) -> Results:
    """Return a copy of a state with NaN in the rows that a mask [rows] bool excludes, in the output and the LSE."""
    return Results(
        state.out.masked_fill(~merged[:, None, None], torch.nan), state.lse.masked_fill(~merged[:, None], torch.nan)
    )


def with_rounded_lses(parts: Sequence[StatesPart], dtype: torch.dtype) -> tuple[list[StatesPart], torch.Tensor]:
    """Return parts whose LSEs are numbers of `dtype`, and whose merge has the same output as that of `parts`.

    Rounding an LSE changes the weight of its part, so its output is multiplied by the inverse of that. Also returns by
    how much [rows, heads] the LSE of their merge is too small.

    Raises:
        Unsupported: a rounded LSE or an output is not finite.
    """
    exact = torch.stack([part.lse for part in parts])
    rounded = exact.to(dtype).double()
    lacking = _merged(exact) - _merged(rounded)
    factors = (exact - rounded - lacking).nan_to_num(0.0).exp2()
    made = [
        StatesPart(part.out * factor.unsqueeze(2), lse, part.present)
        for part, lse, factor in zip(parts, rounded, factors, strict=True)
    ]
    if not all(part.out.to(dtype).isfinite().all() for part in made) or rounded.isfinite().ne(exact.isfinite()).any():
        raise Unsupported(f"LSEs that exceed {dtype}")
    return made, lacking.nan_to_num(0.0)


def _merged(lses: torch.Tensor) -> torch.Tensor:
    """Return the LSE in base 2 over the first axis."""
    return torch.logsumexp(lses * math.log(2), dim=0) / math.log(2)
