"""Traces of FlashInfer's objects: their literal calls, by themselves, end as the step did."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from small_cases import run, step

from attnfuzz.harness.backends.registry import load
from attnfuzz.harness.calls.trace import assemble
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.tiers import Task
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference import case_file
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.calls import REPLAY, CallCase
from attnfuzz.reference.case import Case, Launch, Mode, Pace, Step, Workspace

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")
import direct_on_cpu
import fake_mla
import fake_planned
import fake_wrappers
import wrapper_backends

OBJECTS = [
    f"{Path(str(each.__file__))}:{name}"
    for each in (wrapper_backends, direct_on_cpu)
    for name, backend in vars(each).items()
    if isinstance(backend, GpuBackend) and any(op.library and op.library.makes for op in backend.kernels)
    # A window ends at each level's own last key, and a second geometry has the module of the first.
    if "LEVELS_WINDOW" not in name and "SECOND" not in name
]
GRAPHS = [name for name in OBJECTS if load(name).capability.graph_modes]


def case_of(backend: str, *steps: Step, **fields: Any) -> Case:
    """Two requests, or these steps."""
    can = load(backend).capability
    mode = Mode.DECODE if Mode.DECODE in can.modes else Mode.EXTEND
    q_len = 1 if mode is Mode.DECODE else 2
    made = Case(
        backend=backend,
        geometry=can.buckets[0].simplest,
        steps=steps or (step(mode, (q_len, 40), (q_len, 21)),),
        **fields,
    )
    assert can.why_not(made) is None
    return made


def in_graph(backend: str) -> Case:
    captured = Step(mode=Mode.DECODE, requests=(), padded_tokens=2, tokens_per_request=1, launch=Launch.CAPTURE)
    replayed = replace(step(Mode.DECODE, (1, 40), (1, 21)), launch=Launch.REPLAY)
    return case_of(backend, captured, replayed)


def traced(case: Case, folder: Path) -> tuple[Verdict, CallCase]:
    """A verdict, and the calls of its last step, read as from a file."""
    path = folder / "trace"
    with path.open("w") as file:
        verdict = Execution(Task(case=case, backend=case.backend), lambda _: None, file).run()
    calls = assemble(path, case)
    assert calls is not None
    case_file.validate_any(calls)
    read = case_file.decode(case_file.encode(calls))
    assert read == calls
    assert isinstance(read, CallCase)
    return verdict, read


def failures(verdict: Verdict) -> list[tuple[str, str, str]]:
    assert verdict.unsupported is None
    return [(each.kind, each.kernel, each.place) for each in verdict.observations]


def names(calls: CallCase) -> list[str]:
    return [call.op.rpartition(".")[2] for call in calls.calls]


@pytest.mark.slow
@pytest.mark.parametrize("backend", OBJECTS, ids=lambda name: name.rpartition(":")[2])
def test_calls_on_objects_end_as_their_step_did(backend: str, tmp_path: Path) -> None:
    # Two dozen backends.
    for fields in ({}, {"workspace": Workspace.DIRTY}, {"life": load(backend).capability.earlier_uses}):
        verdict, calls = traced(case_of(backend, **fields), tmp_path)
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
        (arguments["q_d"] if "q_d" in arguments else arguments.get("q", arguments.get("query")))[0].fill_(3.0)
        return result

    monkeypatch.setattr(getattr(module, kind), "run", changed)
    verdict, calls = traced(case_of(backend), tmp_path)
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
    verdict, calls = traced(case_of(backend, life=(EarlierUse.PLANNED_OTHER_SCALE,)), tmp_path)
    assert failures(verdict)
    assert names(calls) == ["BatchPrefillWithPagedKVCacheWrapper", "reset_workspace_buffer", "plan", "plan", "run"]
    assert {call.on for call in calls.calls[1:]} == {calls.calls[0].makes}
    assert failures(run(calls)) == failures(verdict)


def test_lists_on_the_host_are_given_there(tmp_path: Path) -> None:
    backend = f"{wrapper_backends.__file__}:FA2_PAGED"
    _, calls = traced(case_of(backend, pace=Pace.LATE), tmp_path)
    on_host = {buffer.name for buffer in calls.buffers if buffer.host}
    plan = next(call for call in calls.calls if call.op.endswith(".plan"))
    assert plan.arguments["paged_kv_indptr"].buffer in on_host  # type: ignore[union-attr] # a tensor
    assert failures(run(calls)) == []


def test_a_kept_object_has_the_calls_of_all_steps_and_a_fresh_one_of_its_own(tmp_path: Path) -> None:
    backend = f"{wrapper_backends.__file__}:FA2_PAGED"
    two = (step(Mode.EXTEND, (3, 20)), step(Mode.EXTEND, (2, 4)))
    _, fresh = traced(case_of(backend, *two), tmp_path)
    _, kept = traced(case_of(backend, *two, workspace=Workspace.REUSED), tmp_path)
    assert names(fresh).count("plan") == 1
    assert names(kept).count("plan") == 4
    assert failures(run(kept)) == []
