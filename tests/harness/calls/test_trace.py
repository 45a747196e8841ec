"""Traces: the calls of any step, run by themselves, pass and fail as the step did."""

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness_cases import chunked_case, decode_case, draft_extend_case
from hypothesis import HealthCheck, given, seed, settings
from msgspec.structs import replace
from repetition import examples

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.trace import Untraceable, assemble
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import FAULTS, Kind, Verdict
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case, Guard, Outputs
from attnfuzz.strategies.cases import cases

BACKENDS = ("trtllm_mha", "trtllm_mla", "torch_sdpa")
REVISIONS = (
    "trtllm_mha@21649-before",
    "trtllm_mha@24566",
    "trtllm_mla@21987-before",
    "trtllm_mla@22688-before",
)
REVISED = [bug for bug in load_bugs() if "@" in bug.shown_by]


def failures(verdict: Verdict) -> list[tuple[Kind, str]]:
    return [(failure.kind, failure.place) for failure in verdict.failures]


def certain(verdict: Verdict) -> list[tuple[Kind, str]]:
    """The failures without the places of faults: which one of several threads faults first is chance."""
    return [(kind, "" if kind in FAULTS else place) for kind, place in failures(verdict)]


def traced(runner: Runner, case: Case) -> tuple[Verdict, CallCase]:
    verdict, calls = runner.trace(case)
    assert calls is not None
    return verdict, calls


@pytest.mark.slow
@examples(2, 25)
@pytest.mark.parametrize("backend", [*BACKENDS, *REVISIONS])
def test_calls_of_drawn_cases_end_as_their_step_did(runner: Runner, backend: str, count: int) -> None:
    answered = set()

    @seed(2024)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(resolve(backend).capability, backend))
    def find(case: Case) -> None:
        # A pool with a hole has more addresses than a file could hold.
        case = replace(case, pages=replace(case.pages, hole=0))
        verdict, calls = runner.trace(case)
        if calls is None:
            assert failures(verdict) == []
            return
        assert certain(runner.verdict(calls)) == certain(verdict)
        answered.add(calls.answer is not None)

    find()
    assert True in answered


def test_a_trace_ends_with_the_call_that_killed_the_worker(runner: Runner) -> None:
    verdict, calls = traced(runner, draft_extend_case("trtllm_mha@21649-before"))
    assert failures(verdict) == [(Kind.ILLEGAL_ACCESS, "cum_seq_lens_q")]
    assert [call.op for call in calls.calls] == ["trtllm_batch_context_with_kv_cache"]
    assert calls.calls[0].arguments["batch_size"] == 3
    assert calls.answer is None


def test_writes_between_calls_are_traced(runner: Runner) -> None:
    verdict, calls = traced(runner, chunked_case("trtllm_mla"))
    assert failures(verdict) == []
    written = [write.name for call in calls.calls for write in call.writes]
    # Rows of padding are cleared after the first part; nothing else changes but by calls.
    assert written == ["out", "lse"]
    out = next(buffer for buffer in calls.buffers if buffer.name == "out")
    first = next(write for call in calls.calls for write in call.writes)
    assert first.offset == 7 * out.size // 8
    assert first.size == out.size // 8


@pytest.mark.parametrize("outputs", list(Outputs))
@pytest.mark.parametrize("guard", list(Guard))
def test_calls_keep_the_guard_and_the_contents_of_outputs(runner: Runner, outputs: Outputs, guard: Guard) -> None:
    case = replace(chunked_case("trtllm_mla@22688-before", outputs), guard=guard)
    verdict, calls = traced(runner, case)
    assert (calls.guard, calls.outputs) == (guard, outputs)
    assert failures(verdict)
    assert certain(runner.verdict(calls)) == certain(verdict)


def test_a_launch_that_was_refused_is_no_call(runner: Runner) -> None:
    case = replace(decode_case("torch_sdpa", 6, 9, padded=2), arguments=(ArgumentForm.SCALE_TENSOR,))
    _, calls = traced(runner, case)
    assert all(isinstance(call.arguments["scale"], float) for call in calls.calls)
    assert calls.answer is not None
    assert failures(runner.verdict(calls)) == []


def test_calls_have_no_answer_if_a_backend_changes_rows_after_them(runner: Runner, defective: str) -> None:
    verdict, calls = traced(runner, decode_case(f"{defective}:POSTPROCESSED"))
    assert (Kind.OUTPUT_MISMATCH, "out") in failures(verdict)
    assert calls.answer is None
    _, calls = traced(runner, decode_case(f"{defective}:NONE"))
    assert calls.answer is not None


def test_a_call_that_can_not_be_written_down_says_why(runner: Runner, defective: str) -> None:
    with pytest.raises(Untraceable, match=r"a call of attend can't be serialized: options is torch\.float32"):
        runner.trace(decode_case(f"{defective}:OPTIONS"))


def test_a_step_without_a_launch_has_no_calls(runner: Runner, defective: str) -> None:
    verdict, calls = runner.trace(decode_case(f"{defective}:PLANNER"))
    assert failures(verdict) == [(Kind.RAISED, "KeyError")]
    assert calls is None


def test_a_line_without_an_end_is_left_out(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = decode_case("torch_sdpa", 5, 6, padded=2)
    path = tmp_path / "kept.ndjson"
    monkeypatch.setattr(
        "attnfuzz.harness.sandbox.check.assemble", lambda trace, _, **__: path.write_text(trace.read_text()) and None
    )
    runner.trace(case)
    whole = path.read_text()
    first = io.StringIO(whole).readline()
    path.write_text(first + whole[len(first) :][:40])
    calls = assemble(path, case)
    assert calls is not None
    assert len(calls.calls) == 1


def test_a_trace_leaves_nothing_behind_whatever_is_killed(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    there: list[Path] = []
    run = runner._run

    def watched(*arguments: Any, **options: Any) -> Verdict:
        try:
            return run(*arguments, **options)
        finally:
            there.extend(tmp_path.iterdir())

    monkeypatch.setattr(runner, "_run", watched)
    traced(runner, decode_case("trtllm_mha"))
    assert there == []
