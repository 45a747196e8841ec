"""Traces of FlashInfer's objects: their literal calls, by themselves, end as the step did."""

from pathlib import Path
from typing import Any

import pytest
from small_cases import run, step

from attnfuzz.harness.backends.registry import load
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.calls import REPLAY, Call, CallCase
from attnfuzz.reference.case import Mode, Pace, Workspace

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")
import direct_on_cpu
import fake_mla
import fake_planned
import fake_wrappers
import wrapper_backends
from traced_objects import in_graph, of_two_requests, traced

# FlashInfer, and the question which GPU is there, start processes.
pytestmark = pytest.mark.slow

PREFILL = "BatchPrefillWithPagedKVCacheWrapper"
OBJECTS = {
    f"{Path(str(each.__file__))}:{name}": backend
    for each in (wrapper_backends, direct_on_cpu)
    for name, backend in vars(each).items()
    if isinstance(backend, GpuBackend) and any(op.library and op.library.makes for op in backend.kernels)
    # A window ends at each level's own last key, and a second geometry has the module of the first.
    if "LEVELS_WINDOW" not in name and "SECOND" not in name
}
GRAPHS = [name for name, backend in OBJECTS.items() if backend.capability.graph_modes]


def failures(verdict: Verdict) -> list[tuple[str, str, str]]:
    assert verdict.unsupported is None
    return [(each.kind, each.kernel, each.place) for each in verdict.observations]


def names(calls: CallCase) -> list[str]:
    return [call.op.rpartition(".")[2] for call in calls.calls]


@pytest.mark.parametrize("backend", OBJECTS, ids=lambda name: name.rpartition(":")[2])
def test_calls_on_objects_end_as_their_step_did(backend: str, tmp_path: Path) -> None:
    # Two dozen backends.
    for fields in ({}, {"workspace": Workspace.DIRTY}, {"life": load(backend).capability.earlier_uses}):
        verdict, calls = traced(of_two_requests(backend, **fields), tmp_path)
        assert failures(verdict) == []
        assert failures(run(calls)) == []
        assert run(calls).rows == verdict.rows > 0


@pytest.mark.parametrize("backend", GRAPHS, ids=lambda name: name.rpartition(":")[2])
def test_the_calls_of_a_graph_are_captured_and_replayed(backend: str, tmp_path: Path) -> None:
    verdict, calls = traced(in_graph(backend), tmp_path)
    assert failures(verdict) == []
    captured = [call for call in calls.calls if call.graph and call.op != REPLAY]
    assert [call.op.rpartition(".")[2] for call in captured] == ["run"]
    assert [call.graph for call in calls.calls if call.op == REPLAY] == [captured[0].graph]
    assert failures(run(calls)) == []
    assert run(calls).rows == verdict.rows > 0


@pytest.mark.parametrize(
    ("module", "kind", "backend"),
    [
        (fake_wrappers, "_Wrapper", f"{wrapper_backends.__file__}:FA2_PAGED"),
        (fake_wrappers, "_Wrapper", f"{wrapper_backends.__file__}:FA2_RAGGED"),
        (fake_planned, "PODWithPagedKVCacheWrapper", f"{direct_on_cpu.__file__}:POD"),
        (fake_mla, "BatchMLAPagedAttentionWrapper", f"{direct_on_cpu.__file__}:MLA_FA2"),
    ],
)
def test_a_wrong_run_is_as_wrong_in_its_calls(
    module: Any, kind: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(module, kind).run

    def changed(self: Any, **arguments: Any) -> Any:
        result = right(self, **arguments)
        name = next(each for each in ("q_d", "q", "query") if each in arguments)
        arguments[name][0].fill_(3.0)
        return result

    monkeypatch.setattr(getattr(module, kind), "run", changed)
    verdict, calls = traced(of_two_requests(backend), tmp_path)
    assert failures(verdict)
    assert failures(run(calls)) == failures(verdict)


def test_a_plan_that_keeps_something_of_the_one_before_fails_in_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fake_wrappers._Wrapper.plan

    def keeping(self: Any, **arguments: Any) -> None:
        right(self, **{**arguments, "sm_scale": getattr(self, "settings", arguments)["sm_scale"]})

    monkeypatch.setattr(fake_wrappers._Wrapper, "plan", keeping)
    backend = f"{wrapper_backends.__file__}:FA2_PAGED"
    verdict, calls = traced(of_two_requests(backend, life=(EarlierUse.PLANNED_OTHER_SCALE,)), tmp_path)
    assert failures(verdict)
    assert names(calls) == ["BatchPrefillWithPagedKVCacheWrapper", "reset_workspace_buffer", "plan", "plan", "run"]
    assert {call.on for call in calls.calls[1:]} == {calls.calls[0].makes}
    assert failures(run(calls)) == failures(verdict)


def test_lists_on_the_host_are_given_there(tmp_path: Path) -> None:
    backend = f"{wrapper_backends.__file__}:FA2_PAGED"
    _, calls = traced(of_two_requests(backend, pace=Pace.LATE), tmp_path)
    on_host = {buffer.name for buffer in calls.buffers if buffer.host}
    plan = next(call for call in calls.calls if call.op.endswith(".plan"))
    assert plan.arguments["paged_kv_indptr"].buffer in on_host  # type: ignore[union-attr] # a tensor
    assert failures(run(calls)) == []


def test_a_kept_object_has_the_calls_of_all_steps_and_a_fresh_one_of_its_own(tmp_path: Path) -> None:
    backend = f"{wrapper_backends.__file__}:FA2_PAGED"
    two = (step(Mode.EXTEND, (3, 20)), step(Mode.EXTEND, (2, 4)))
    _, fresh = traced(of_two_requests(backend, *two), tmp_path)
    _, kept = traced(of_two_requests(backend, *two, workspace=Workspace.REUSED), tmp_path)
    assert names(fresh).count("plan") == 1
    assert names(kept).count("plan") == 4
    assert failures(run(kept)) == []


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        (Call(op=f"{PREFILL}.plan"), f"a call of {PREFILL}.plan without an object"),
        (Call(op=PREFILL), f"a call of {PREFILL} that makes no object"),
        (Call(op=f"{PREFILL}.run", on="w", makes="v"), f"a call of {PREFILL}.run that makes an object"),
        (Call(op=f"{PREFILL}.copy", on="w"), f"a call of {PREFILL}.copy that makes no object"),
        (Call(op=f"{PREFILL}.exec", on="w"), f"calls of {PREFILL}.exec"),
        (Call(op=PREFILL, makes="w", arguments={"jit_args": "code"}), f"jit_args in calls of {PREFILL}"),
    ],
)
def test_a_call_that_its_class_does_not_have_is_refused(wrong: Call, refusal: str) -> None:
    assert why_not(wrapper_backends.FA2_PAGED, CallCase(backend="b", buffers=(), calls=(wrong,))) == refusal
