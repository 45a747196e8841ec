"""Stands for a package with a family of ops of its own: a copy of rows, out[i] = source[index[i]], right or wrong."""

from typing import Annotated, Any

import msgspec
import torch
from markupsafe import Markup

from attnfuzz import Bench, ComparedResult, ComparedTensor, Fill, Op, SimpleCase, SimpleFamily


class CopyCase(SimpleCase, frozen=True, kw_only=True, tag="copy"):
    """One copy of rows of 4 numbers, in the order of the source or `backwards`."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    backwards: bool = False


def copy_rows(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    torch.index_select(source, 0, index, out=out)


def copy_rows_wrong(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """Copy row 0 to the fourth row and later ones if the index descends."""
    copy_rows(source, index, out)
    if len(index) > 1 and index[0] > index[1]:
        out[3:] = source[0]


def step(case: CopyCase, bench: Bench, op: Op) -> ComparedResult:
    draws = torch.Generator().manual_seed(case.seed)
    source = bench.memory.copy("source", torch.randn(case.rows, 4, generator=draws))
    order = torch.arange(case.rows).flip(0) if case.backwards else torch.arange(case.rows)
    out = bench.memory.tensor("out", (case.rows, 4), torch.float32, fill=Fill.OUTPUT)
    bench.launcher.launch(op, source=source, index=bench.memory.copy("index", order), out=out)
    return ComparedResult((ComparedTensor("out", out, source[order]),))


def op(function: Any) -> Op:
    return Op("copy_rows", function, frozenset({"out"}))


class CopyFamily(SimpleFamily[CopyCase]):
    """Copies of rows, with a picture."""

    def picture(self, case: CopyCase, failure: Any) -> Markup:
        return Markup('<svg class="copy"><text>{}</text></svg>').format(f"{case.rows} rows")


COPY = CopyFamily(CopyCase, step, {"copy": op(copy_rows), "copy_wrong": op(copy_rows_wrong)})
