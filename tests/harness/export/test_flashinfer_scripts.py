"""Scripts for FlashInfer: every call binds to what is installed, and on a GPU made of the CPU they show what fails."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from harness_cases import LATENT, chunked_case, decode_case, draft_extend_case
from msgspec.structs import replace
from run_scripts import outcomes

from attnfuzz.harness.export import CannotExport, Exporter, Target, export_script
from attnfuzz.harness.export.script import render_script
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import Buffer, CallCase, View
from attnfuzz.reference.case import Guard, Outputs, Pages
from attnfuzz.reference.dtypes import DType

pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")
pytest.importorskip("cuda.bindings", reason="compares with the installed cuda-bindings")

FAKES = Path(__file__).parents[2] / "fakes"
MALFORMED = Path(__file__).parents[1] / "short_seq_lens.json"

FAULT = "seen: RuntimeError: CUDA error: an illegal memory access was encountered\nthe fault shows"
RIGHT = "no stray writes\nnothing is wrong"

CASES: dict[str, tuple[AnyCase, int, str]] = {
    "context faults": (draft_extend_case("trtllm_mha@21649-before"), 1, FAULT),
    "decode faults": (draft_extend_case("trtllm_mha@24566"), 1, FAULT),
    "decode faults to the left": (draft_extend_case("trtllm_mha@24566", Guard.LEFT), 1, FAULT),
    "calls fault": (case_file.load(MALFORMED), 1, FAULT),
    "ragged leaves rows unwritten": (chunked_case("trtllm_mla@22688-before"), 1, "it holds nan"),
    "ragged leaves rows stale": (
        chunked_case("trtllm_mla@22688-before", Outputs.STALE),
        1,
        " error; 16 of ",
    ),
    "decode is right": (decode_case("trtllm_mha"), 0, RIGHT),
    "MLA decode is right": (replace(decode_case("trtllm_mla"), geometry=LATENT), 0, RIGHT),
    "context is right": (draft_extend_case("trtllm_mha"), 0, RIGHT),
    "context with a hole in the pool is right": (
        replace(draft_extend_case("trtllm_mha"), pages=Pages(hole=1 << 22)),
        0,
        RIGHT,
    ),
    "ragged, merge and fixup are right": (chunked_case("trtllm_mla"), 0, RIGHT),
}


def exported(case: AnyCase, runner: Runner) -> str:
    return export_script(case, runner, target=Target.FLASHINFER)


@pytest.fixture(scope="module")
def scripts(runner: Runner) -> dict[str, str]:
    """The scripts of the cases."""
    return {name: exported(case, runner) for name, (case, _, _) in CASES.items()}


@pytest.fixture(scope="module")
def ran(scripts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """For each of the cases the exit code of its script, and what it printed."""
    folder = tmp_path_factory.mktemp("scripts")
    paths = {name: folder / f"{index}.py" for index, name in enumerate(CASES)}
    for name, path in paths.items():
        text = scripts[name]
        assert text.count('DEVICE = "cuda"') == 1
        path.write_text(text.replace('DEVICE = "cuda"', 'DEVICE = "cpu"'))
    run = subprocess.run(
        [sys.executable, str(FAKES / "fake_gpu.py"), *map(str, paths.values())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return outcomes(paths, run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_scripts_show_their_failure_and_nothing_else(ran: dict[str, tuple[int, str]], name: str) -> None:
    code, output = ran[name]
    _, expected_code, words = CASES[name]
    assert code == expected_code, output
    assert words in output
    assert output.startswith("torch ")
    assert ", flashinfer " in output.splitlines()[0]


@pytest.mark.slow
def test_scripts_import_all_names_that_they_use(scripts: dict[str, str], tmp_path: Path) -> None:
    for index, text in enumerate(scripts.values()):
        (tmp_path / f"{index}.py").write_text(text)
    lint = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert lint.returncode == 0, lint.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_scripts_import_nothing_of_ours(scripts: dict[str, str], name: str) -> None:
    text = scripts[name]
    imported = {
        str(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported - sys.stdlib_module_names <= {"torch", "flashinfer", "cuda"}
    assert ("cuda" in imported) == ("Pages" in text)


def test_the_docstring_states_versions_and_differences(runner: Runner) -> None:
    head = str(ast.get_docstring(ast.parse(exported(decode_case("trtllm_mha"), runner))))
    assert "flashinfer-python 0." in head
    assert "The workspace is 128 MiB of zeros" in head
    assert "The LSE of the decode is left out" in head
    assert "mask" not in head
    verify = str(ast.get_docstring(ast.parse(exported(draft_extend_case("trtllm_mha@24566"), runner))))
    assert "XQA needs a mask" in verify


def test_the_lse_that_a_merge_needs_is_kept(runner: Runner) -> None:
    text = exported(chunked_case("trtllm_mla"), runner)
    assert "return_lse=True" in text
    assert "return_lse" not in exported(decode_case("trtllm_mha"), runner)


def test_a_workspace_is_never_smaller_than_that_of_the_call(runner: Runner) -> None:
    case = case_file.load(MALFORMED)
    assert isinstance(case, CallCase)
    assert "torch.zeros(128 << 20, " in exported(case, runner)
    large = Buffer(name="workspace_buffer", dtype=DType.UINT8, size=(130 << 20) - 5)
    views = {"workspace_buffer": View(buffer="workspace_buffer", shape=(large.size,), stride=(1,))}
    call = replace(case.calls[0], arguments=case.calls[0].arguments | views)
    buffers = (*(buffer for buffer in case.buffers if buffer.name != large.name), large)
    assert "torch.zeros(130 << 20, " in exported(replace(case, buffers=buffers, calls=(call,)), runner)


def test_a_function_that_flashinfer_lacks_cannot_be_exported_for_it(runner: Runner) -> None:
    with pytest.raises(CannotExport, match="FlashInfer has no scaled_dot_product_attention: export it without --for"):
        exported(decode_case("torch_sdpa", 6, 0, padded=2), runner)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "first"), [("xqa", Target.FLASHINFER), ("trtllm_mha", Target.NATIVE)])
def test_the_calls_of_a_gpu_are_shown_with_flashinfer_first(
    monkeypatch: pytest.MonkeyPatch, backend: str, first: Target
) -> None:
    monkeypatch.setattr(Exporter, "script", lambda _, target: f"for {target}")
    never_run = cast("Runner", SimpleNamespace(trace_both=lambda _: (Verdict(), None, None)))
    exporter = Exporter(decode_case(backend), never_run)
    assert next(exporter.scripts()) == f"for {first}"
    assert len(list(exporter.scripts())) == len(Target)


def test_a_script_that_lacks_a_package_does_not_pretend_to_show_a_fault(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(exported(case_file.load(MALFORMED), runner))
    ran = subprocess.run([sys.executable, "-I", "-S", str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "pip install torch flashinfer-python cuda-bindings" in ran.stderr


@pytest.mark.slow
def test_a_script_without_a_gpu_does_not_pretend_to_show_a_fault(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(exported(case_file.load(MALFORMED), runner))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "seen: torch finds no GPU\nit could not run\n")


def test_an_argument_that_native_functions_alone_have_is_left_out() -> None:
    calls = case_file.load(MALFORMED)
    assert isinstance(calls, CallCase)
    (call,) = calls.calls
    own = replace(call, arguments=call.arguments | {"v_scales_swizzled": True})
    text = render_script("id", replace(calls, calls=(own,)), None, Target.FLASHINFER)
    assert "v_scales_swizzled" not in text


def test_calls_that_end_their_process_show_it(runner: Runner, tmp_path: Path) -> None:
    """The script's calls run in a second process, which must be a real one."""
    exporter = Exporter(decode_case("trtllm_mha"), runner)
    died = Observation(kind=Kind.WORKER_DIED, place="killed by SIGFPE", message="killed by SIGFPE")
    assert exporter.calls is not None
    text = render_script("0", exporter.calls, died, Target.FLASHINFER)
    text = text.replace("torch.cuda.is_available()", "True").replace("torch.cuda.get_device_name()", "'a GPU'")
    path = tmp_path / "script.py"
    path.write_text(text.replace("wrong = run()", "os.kill(os.getpid(), signal.SIGFPE)"))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.endswith("expected: the calls return\nseen: the calls died of SIGFPE\nthe fault shows\n")
