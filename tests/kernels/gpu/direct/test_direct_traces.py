"""Traces of functions: their calls are those that failed, in the dtypes that the functions got."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from small_cases import run, step

from attnfuzz.harness.calls.trace import assemble
from attnfuzz.harness.export.script import render_script
from attnfuzz.harness.export.target import Target
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.gpu.direct.single import SINGLE_DECODE, SingleSession
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Mode, Scales, Workspace
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.relation import Relation

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")
import direct_on_cpu
import wrapper_backends
from traced_objects import of_two_requests, traced

# FlashInfer, and the question which GPU is there, start processes.
pytestmark = pytest.mark.slow

MERGE = f"{direct_on_cpu.__file__}:CASCADE_MERGE"
DECODE = f"{direct_on_cpu.__file__}:SINGLE_DECODE_CUDA_CORES"


@pytest.mark.parametrize("mode", [Mode.DECODE, Mode.EXTEND, Mode.CHUNKED_PREFILL])
def test_lses_in_float64_are_recorded_as_they_are(mode: Mode, tmp_path: Path) -> None:
    q_len = 1 if mode is Mode.DECODE else 2
    case = of_two_requests(MERGE, step(mode, (q_len, 40), (q_len, 21)), arguments=(ArgumentForm.STATE_LSES_FLOAT64,))
    verdict, calls = traced(case, tmp_path)
    assert not verdict.observations
    assert DType.FLOAT64 in {buffer.dtype for buffer in calls.buffers}
    assert calls.answer is not None
    # The session compares that of a merge in place as float32.
    assert (calls.answer.lse is None) is (mode is Mode.CHUNKED_PREFILL)


def test_a_merge_with_lses_in_16_bits_has_an_answer_without_lse(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(MERGE, arguments=(ArgumentForm.STATE_LSES_16_BITS,)), tmp_path)
    assert calls.answer is not None
    assert calls.answer.lse is None


def scales_in_place(right: Callable[..., None], **arguments: Any) -> None:
    """Multiply a scale in a tensor, and then refuse it."""
    if isinstance(arguments["sm_scale"], torch.Tensor):
        arguments["sm_scale"] *= arguments["k_scale"]
        raise TypeError("sm_scale must be a float")
    right(**arguments)


def test_calls_that_were_refused_after_they_had_failed_are_those_of_the_script(tmp_path: Path) -> None:
    right = direct_on_cpu.SINGLE_DECODE_CUDA_CORES
    session: Any = right.session
    (kind,) = session.args
    op = replace(SINGLE_DECODE, function=partial(scales_in_place, kind.op.function))
    wrong = replace(right, session=partial(SingleSession, replace(kind, op=op)), kernels=(op,))
    case = of_two_requests(DECODE, arguments=(ArgumentForm.SCALE_TENSOR,), scales=Scales(k=0.5))
    verdict, calls = traced(case, tmp_path, wrong)
    (seen,) = verdict.failures
    assert (seen.kind, seen.place) == (Kind.INPUT_MUTATED, "sm_scale")
    assert len(calls.calls) == 1
    assert Kind.INPUT_MUTATED in {each.kind for each in run(calls, wrong).failures}
    text = render_script("made", structs.replace(calls, backend="single_decode"), seen, Target.FLASHINFER)
    assert "READ_ONLY = ['query', 'key', 'value', 'sm_scale']" in text
    assert "code = 1 if broken() or damaged() else 2" in text


@pytest.mark.parametrize("workspace", [Workspace.FRESH, Workspace.REUSED])
def test_both_runs_of_a_related_case_are_traced(workspace: Workspace, tmp_path: Path) -> None:
    steps = (step(Mode.DECODE, (1, 40), (1, 21)), step(Mode.DECODE, (1, 41), (1, 22)))
    case = of_two_requests(
        f"{wrapper_backends.__file__}:FA3_BATCH_DECODE", *steps, workspace=workspace, relation=Relation.BATCH_PERMUTED
    )
    verdict, second = traced(case, tmp_path)
    assert not verdict.observations
    plans = []
    for index in (0, 1):
        first = assemble(tmp_path / "trace", case, index)
        assert first is not None
        assert first.answer is not None
        lengths = [request.key.shape[0] for request in first.answer.requests]
        assert lengths == [40 + index, 21 + index]
        plans.append(len([call for call in first.calls if call.op.endswith(".plan")]))
    assert plans[1] == (2 if workspace is Workspace.REUSED else 1) * plans[0], "a kept object has earlier plans"
    assert second.answer is not None
    assert [request.key.shape[0] for request in second.answer.requests] == [22, 41]
    assert {call.makes for call in second.calls} >= {"wrapper_1"}
