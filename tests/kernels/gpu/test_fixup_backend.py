"""The backend around the CUDA fixup, with the torch model in the kernel's place: what it asks for is right."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
from small_cases import HEADS, drawn, lighter, passed, run, step

from attnfuzz.harness.inside import execute
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.gpu.direct import states
from attnfuzz.kernels.gpu.direct.states import CUDA_FIXUP
from attnfuzz.kernels.gpu.states import FIXUP
from attnfuzz.kernels.interface.backend import Backend, Op
from attnfuzz.kernels.planning import fixup
from attnfuzz.reference.case import Case, Mode, Outputs, QueryView, Views
from attnfuzz.reference.device import Device

Fixup = Callable[..., None]

EMPTY = step(Mode.EXTEND, (3, 0), (4, 9), (4, 2), (0, 5), (7, 7), (2, 0), (0, 0), (2, 19), rows=27)


@pytest.fixture
def with_kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fixup], None]:
    """Puts a function in the place of the kernel, on the CPU."""

    def put(function: Fixup) -> None:
        on_cpu: Backend = replace(
            CUDA_FIXUP, capability=msgspec.structs.replace(CUDA_FIXUP.capability, device=Device.CPU), own=()
        )
        monkeypatch.setattr(states, "FIXUP", Op(FIXUP.name, function, FIXUP.writes))
        monkeypatch.setattr(execute, "backend_of", lambda _: on_cpu)

    return put


@pytest.mark.parametrize("view", QueryView)
@pytest.mark.parametrize("outputs", Outputs)
def test_rows_of_empty_requests_and_of_padding_are_cleared(
    with_kernel: Callable[[Fixup], None], view: QueryView, outputs: Outputs
) -> None:
    with_kernel(fixup.fixup_zero_kv_rows)
    case = Case(backend="cuda_fixup", geometry=HEADS, steps=(EMPTY,), views=Views(query=view), outputs=outputs)
    assert passed(case).rows


@pytest.mark.slow
def test_drawn_cases_pass(with_kernel: Callable[[Fixup], None]) -> None:
    with_kernel(fixup.fixup_zero_kv_rows)
    for case in lighter(drawn("cuda_fixup", 25)):
        passed(case)


def leaves_rows(**_: object) -> None:
    """A kernel that does nothing."""


def clears_a_row_too_many(*, cum_seq_lens: torch.Tensor, **others: object) -> None:
    """A kernel for which the first request, which is empty, has one token more."""
    cum_seq_lens = cum_seq_lens.clone()
    cum_seq_lens[1] += 1
    fixup.fixup_zero_kv_rows(cum_seq_lens=cum_seq_lens, **others)  # type: ignore[arg-type]


def writes_into_gaps(*, out: torch.Tensor, **others: object) -> None:
    """A kernel that takes its output to be dense."""
    dense = out.as_strided(out.shape, (out.shape[1] * out.shape[2], out.shape[2], 1))
    fixup.fixup_zero_kv_rows(dense, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        (leaves_rows, {Kind.UNWRITTEN, Kind.NOT_FINITE, Kind.EMPTY_ROW}),
        (clears_a_row_too_many, {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH}),
        (writes_into_gaps, {Kind.CANARY_OVERWRITTEN}),
    ],
)
def test_a_wrong_kernel_is_found(with_kernel: Callable[[Fixup], None], wrong: Fixup, kinds: set[Kind]) -> None:
    with_kernel(wrong)
    case = Case(backend="cuda_fixup", geometry=HEADS, steps=(EMPTY,), views=Views(query=QueryView.HEAD_GAP))
    assert kinds & {failure.kind for failure in run(case).failures}
