"""Stands for a package with a family of ops of its own: a copy of rows, out[i] = source[index[i]], right or wrong."""

from typing import Any, NamedTuple

import msgspec
import torch
from hypothesis import strategies as st
from markupsafe import Markup

from attnfuzz.harness.family import Family
from attnfuzz.harness.judge.compared import judge_compared
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.kernels.interface.backend import Fill, Op
from attnfuzz.kernels.interface.compared import ComparedResult, ComparedTensor
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.features.row import of_case, only, removable, single
from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.validity import ImpossibleCase


class CopyCase(AnyCase, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="copy"):
    """One copy of `rows` rows of 4 numbers, in the order of the source or `backwards`."""

    backend: str
    rows: int = 1
    backwards: bool = False
    seed: int = 0
    guard: Guard = Guard.RIGHT
    outputs: Outputs = Outputs.POISONED
    past: tuple[PastFailure, ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        return ("copy",)

    def validate(self) -> None:
        if not 1 <= self.rows <= 64:
            raise ImpossibleCase("rows", self.rows, "must be 1 to 64")


class CopyCapability(NamedTuple):
    """Every copy."""

    device: Device = Device.CPU
    patience: float = 1.0

    def why_not(self, case: AnyCase) -> str | None:
        return None if isinstance(case, CopyCase) else "cases of other ops"


def copy_rows(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    torch.index_select(source, 0, index, out=out)


def copy_rows_wrong(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """Copy row 0 to the fourth row and later ones if the index descends."""
    copy_rows(source, index, out)
    if len(index) > 1 and index[0] > index[1]:
        out[3:] = source[0]


class CopyBackend:
    """Backend and session of one of both functions."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.capability, self.contract = name, CopyCapability(), Contract()
        self.ops = {"copy_rows": Op("copy_rows", function, frozenset({"out"}))}

    def missing(self) -> None:
        return None

    def prepare(self, progress: Any) -> None:
        """Nothing is compiled."""

    def open(self, case: CopyCase, bench: Any) -> Any:
        self.case, self.bench = case, bench
        return self

    def forward(self, _: int) -> ComparedResult:
        rows = self.case.rows
        draws = torch.Generator().manual_seed(self.case.seed)
        source = self.bench.memory.copy("source", torch.randn(rows, 4, generator=draws))
        index = torch.arange(rows).flip(0) if self.case.backwards else torch.arange(rows)
        out = self.bench.memory.tensor("out", (rows, 4), torch.float32, fill=Fill.OUTPUT)
        self.bench.launcher.launch(
            self.ops["copy_rows"], source=source, index=self.bench.memory.copy("index", index), out=out
        )
        return ComparedResult((ComparedTensor("out", out, source[index]),))


class CopyFamily(Family[CopyCase]):
    """Copies of rows."""

    case_type, result_type = CopyCase, ComparedResult
    backends: Any = (CopyBackend("copy", copy_rows), CopyBackend("copy_wrong", copy_rows_wrong))
    table = FeatureTable(
        of_case(
            single("order", ("forwards", "backwards"), lambda case: "backwards" if case.backwards else "forwards"),
            "backwards",
            removable("descending index", only("backwards"), lambda case: [case.having(backwards=False)]),
        )
    )

    def runs(self, capability: Any) -> bool:
        return isinstance(capability, CopyCapability)

    def cases(self, capability: Any, backend: str, lean: Any) -> st.SearchStrategy[CopyCase]:
        rows, seeds = st.integers(1, 64), st.integers(0, 1 << 31)
        return st.builds(CopyCase, backend=st.just(backend), rows=rows, backwards=st.booleans(), seed=seeds)

    def judge(self, case: Any, result: ComparedResult, terms: Any) -> Judgement:
        return judge_compared(result, terms)

    def record(self, case: Any, result: ComparedResult, tracer: Any) -> None:
        tracer.compared(result)

    def edits(self, capability: Any) -> Any:
        return (lambda case: (case.having(rows=rows) for rows in range(1, case.rows)),)

    def describe(self, case: CopyCase, *, notes: bool = True) -> str:
        return f"a copy of {case.rows} rows by {case.backend}, {'backwards' if case.backwards else 'forwards'}"

    def picture(self, case: CopyCase, failure: Any) -> Markup:
        return Markup('<svg class="copy"><text>{}</text></svg>').format(f"{case.rows} rows")


COPY = CopyFamily()
