"""Scripts of calls on a library's objects: they make the calls that were traced, in the library's own words."""

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")

import direct_on_cpu
import fake_wrappers
import wrapper_backends
from traced_objects import in_graph, of_two_requests, traced

from attnfuzz.harness.export.script import render_script
from attnfuzz.harness.export.target import Target
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.gpu.wrappers import wrapper
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.case import Case, Workspace

# FlashInfer, and the question which GPU is there, start processes.
pytestmark = pytest.mark.slow

WRAPPERS = {
    "fa2_paged": f"{wrapper_backends.__file__}:FA2_PAGED",
    "fa2_ragged": f"{wrapper_backends.__file__}:FA2_RAGGED",
    "batch_decode": f"{wrapper_backends.__file__}:BATCH_DECODE",
    "cuda_graph_decode": f"{wrapper_backends.__file__}:CUDA_GRAPH_DECODE",
    "fa2_sinks": f"{wrapper_backends.__file__}:FA2_SINKS",
    "mla_fa2": f"{direct_on_cpu.__file__}:MLA_FA2",
    "batch_attention": f"{direct_on_cpu.__file__}:BATCH_ATTENTION",
    "cascade_levels": f"{direct_on_cpu.__file__}:CASCADE_LEVELS",
    "shared_prefix_decode": f"{direct_on_cpu.__file__}:SHARED_PREFIX_DECODE",
    "pod": f"{direct_on_cpu.__file__}:POD",
    "batch_pod": f"{direct_on_cpu.__file__}:BATCH_POD",
    "fa2_block_sparse": f"{direct_on_cpu.__file__}:FA2_BLOCK_SPARSE",
    "fa2_variable_sparse": f"{direct_on_cpu.__file__}:FA2_VARIABLE_SPARSE",
}
"""Backends on FlashInfer's classes, and the same on fake classes."""

USES = (EarlierUse.COPIED, EarlierUse.OVERWRITTEN, EarlierUse.RESET, EarlierUse.OTHER_STREAM)


def script_of(name: str, case: Case, folder: Path) -> tuple[str, Observation | None]:
    """The script for FlashInfer of a case on fake classes, and its failure."""
    verdict, calls = traced(case, folder)
    seen = next(iter(verdict.observations), None)
    return render_script("made", replace(calls, backend=name), seen, Target.FLASHINFER), seen


@pytest.fixture(autouse=True)
def _small_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose size follows from nothing have 128 MiB."""
    monkeypatch.setattr(wrapper, "RECOMMENDED", wrapper.WorkspaceNeed(floats=1 << 18, ints=1 << 16))


class _Graph:
    """A graph on the CPU, whose calls are made when it is replayed."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script on the CPU, with fake classes in place of FlashInfer's; returns its exit code."""
    captured: list[_Graph] = []

    @contextlib.contextmanager
    def capture(graph: _Graph) -> Any:
        captured.append(graph)
        yield
        captured.pop()

    right = fake_wrappers._Wrapper.run

    def run(self: Any, **arguments: Any) -> Any:
        if captured:
            captured[-1].calls.append(lambda: right(self, **arguments))
            return None
        return right(self, **arguments)

    def run_script(text: str) -> int:
        for module in ("prefill", "decode", "attention", "mla", "cascade", "pod", "sparse"):
            fakes = {"attention": "fake_wrappers" if "Sink" in text else "fake_planned", "mla": "fake_mla"}
            planned = "fake_planned" if module in ("cascade", "pod", "sparse") else "fake_wrappers"
            text = text.replace(f"from flashinfer.{module} import", f"from {fakes.get(module, planned)} import")
        path = tmp_path / "repro.py"
        path.write_text(text.replace('DEVICE = "cuda"', 'DEVICE = "cpu"'))
        monkeypatch.setattr(fake_wrappers._Wrapper, "run", run)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", _Graph)
        monkeypatch.setattr(torch.cuda, "graph", capture)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        main = runpy.run_path(str(path))["main"]
        monkeypatch.setitem(main.__globals__, "allocate", lambda n: (torch.empty(n + 8192, dtype=torch.uint8), 4096))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a CPU")
        available = torch.cuda.is_available
        answers = iter([True])
        # The script asks first, and our own code later.
        monkeypatch.setattr(torch.cuda, "is_available", lambda: next(answers, available()))
        code: int = main()
        return code

    assert "fake_wrappers" in sys.modules
    return run_script


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_script_makes_the_calls_of_a_wrapper(name: str, tmp_path: Path, run_script: Any) -> None:
    # A dozen classes.
    uses = of_two_requests(WRAPPERS[name], life=())
    offered = [use for use in USES if use in wrapper_uses(name)]
    for case in (uses, replace(uses, life=tuple(offered))):
        text, seen = script_of(name, case, tmp_path)
        assert seen is None
        assert "attnfuzz." not in text.partition('"""\n\n')[2]
        assert run_script(text) == 0


def wrapper_uses(name: str) -> tuple[EarlierUse, ...]:
    from attnfuzz.harness.backends.registry import resolve  # noqa: PLC0415 - of one test

    return resolve(name).capability.earlier_uses


@pytest.mark.parametrize("name", ["fa2_paged", "cuda_graph_decode"])
def test_a_script_captures_and_replays_a_graph(name: str, tmp_path: Path, run_script: Any) -> None:
    text, seen = script_of(name, in_graph(WRAPPERS[name]), tmp_path)
    assert seen is None
    assert "    with torch.cuda.graph(graph_1):\n        wrapper_1.run(\n" in text
    assert text.count("graph_1.replay()") == 1
    assert run_script(text) == 0


@pytest.mark.parametrize("name", ["fa2_paged", "fa2_ragged"])
def test_a_script_shows_state_left_over_from_an_earlier_plan(
    name: str, tmp_path: Path, run_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fake_wrappers._Wrapper.plan

    def keeping(self: Any, **arguments: Any) -> None:
        right(self, **{**arguments, "sm_scale": getattr(self, "settings", arguments)["sm_scale"]})

    monkeypatch.setattr(fake_wrappers._Wrapper, "plan", keeping)
    case = of_two_requests(WRAPPERS[name], life=(EarlierUse.PLANNED_OTHER_SCALE,))
    text, seen = script_of(name, case, tmp_path)
    assert seen is not None
    assert text.count("wrapper_1.plan(") == 2
    assert run_script(text) == 1
    monkeypatch.setattr(fake_wrappers._Wrapper, "plan", right)
    assert run_script(text) == 0


def test_a_script_leaves_nan_in_shared_memory_before_each_run_if_the_workspace_was_dirty(
    tmp_path: Path, run_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied: list[bool] = []
    monkeypatch.setattr(torch, "matmul", lambda one, _: multiplied.append(bool(one.isnan().all())))
    for workspace in Workspace:
        text, seen = script_of("batch_decode", of_two_requests(WRAPPERS["batch_decode"], workspace=workspace), tmp_path)
        assert seen is None
        assert run_script(text.replace("(8192, 8192)", "(64, 64)")) == 0
        dirty = workspace is Workspace.DIRTY
        runs = text.count("    wrapper_1.run(")
        assert text.count("    leave_nan_in_shared_memory()\n    wrapper_1.run(") == (runs if dirty else 0)
        assert set(multiplied) == ({True} if dirty else set())
        multiplied.clear()
