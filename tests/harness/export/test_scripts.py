"""Exported scripts: they run without attnfuzz, show what failed, and find nothing wrong with what is right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness_cases import chunked_case, decode_case, draft_extend_case
from hypothesis import HealthCheck, given, seed, settings
from msgspec.structs import replace

from attnfuzz.harness.bugs import Bug, load_bugs
from attnfuzz.harness.check import Runner
from attnfuzz.harness.export import CannotExport, export_script, script
from attnfuzz.harness.failures import Kind
from attnfuzz.harness.registry import resolve
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase, View
from attnfuzz.reference.case import Case, Guard, Outputs
from attnfuzz.reference.case_file import AnyCase
from attnfuzz.strategies.cases import cases

MALFORMED = Path(__file__).parents[1] / "short_seq_lens.json"

WITHOUT_ATTNFUZZ = """
import os, runpy, sys, torch, tvm_ffi.cpp

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "attnfuzz":
            raise ImportError("attnfuzz is not to be imported")

sys.meta_path.insert(0, Blocked())
for path in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        runpy.run_path(path, run_name="__main__")
    print(f"== {path} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where scripts keep their kernels, compiled once for all tests here."""
    return tmp_path_factory.mktemp("cache")


def run(paths: list[Path], cache: Path) -> tuple[list[int], str]:
    """The exit codes of scripts, run one after another where attnfuzz can't be imported, and what they print."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_ATTNFUZZ, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cache,
        env=env | {"XDG_CACHE_HOME": str(cache)},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return [int(line.split()[-1]) for line in ran.stdout.splitlines() if line.startswith("== ")], ran.stdout


def exported(case: AnyCase, runner: Runner, path: Path) -> Path:
    path.write_text(export_script(case, runner))
    return path


@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla", "torch_sdpa"])
def test_scripts_of_passing_cases_find_nothing_wrong(runner: Runner, backend: str, tmp_path: Path, cache: Path) -> None:
    paths: list[Path] = []

    @seed(5)
    @settings(max_examples=8, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(resolve(backend).capability, backend))
    def export(case: Case) -> None:
        if any(request.q_len and request.kv_len for request in case.steps[-1].requests):
            paths.append(exported(case, runner, tmp_path / f"{len(paths)}.py"))

    export()
    assert len(paths) >= 4
    codes, output = run(paths, cache)
    assert codes == [0] * len(paths), output
    assert ": 0 of " in output


@pytest.mark.parametrize("bug", load_bugs(), ids=lambda bug: bug.name)
def test_scripts_of_reported_bugs_show_the_fault(runner: Runner, bug: Bug, tmp_path: Path, cache: Path) -> None:
    case = replace(bug.case, backend=bug.backend_before)
    codes, output = run([exported(case, runner, tmp_path / "bug.py")], cache)
    assert codes == [1]
    assert "the fault shows" in output
    assert ("died of SIGSEGV, a read at " in output) or (": expected " in output)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (draft_extend_case("trtllm_mha@21649-before"), "a read at cum_seq_lens_q: 0 bytes past its end"),
        (draft_extend_case("trtllm_mha@24566", Guard.LEFT), "died of SIGSEGV"),
        (chunked_case("trtllm_mla@22688-before"), "seen nan"),
        (chunked_case("trtllm_mla@22688-before", Outputs.STALE), "expected "),
        (case_file.load(MALFORMED), "a read at seq_lens: 0 bytes past its end"),
    ],
    ids=["fault", "fault behind poison", "unwritten", "stale", "calls"],
)
def test_scripts_show_faults_and_wrong_values(
    runner: Runner, case: AnyCase, words: str, tmp_path: Path, cache: Path
) -> None:
    codes, output = run([exported(case, runner, tmp_path / "failing.py")], cache)
    assert codes == [1]
    assert words in output


def test_scripts_show_what_was_written_beside_a_buffer(runner: Runner, tmp_path: Path, cache: Path) -> None:
    case = case_file.load(MALFORMED)
    assert isinstance(case, CallCase)
    call = case.calls[0]
    # Two of three rows fit, and the third goes where no page is closed: past the end of a buffer that is guarded left.
    short = View(buffer="out", shape=(2, 1, 8), stride=(8, 8, 1))
    lengths = View(buffer="cum_seq_lens_q", shape=(3,), stride=(1,), offset=1)
    changes = {"batch_size": 2, "query": replace(short, buffer="query"), "out": short, "cum_seq_lens_q": lengths}
    two = replace(call, arguments=call.arguments | changes)
    buffers = (*case.buffers[:-1], replace(case.buffers[-1], size=16))
    beside = replace(case, calls=(two,), buffers=buffers, guard=Guard.LEFT)
    assert [(failure.kind, failure.place) for failure in runner.verdict(beside).failures] == [
        (Kind.CANARY_OVERWRITTEN, "out")
    ]
    codes, output = run([exported(beside, runner, tmp_path / "beside.py")], cache)
    assert codes == [1]
    assert "the memory beside out was overwritten" in output


@pytest.mark.parametrize(
    "case",
    [draft_extend_case("trtllm_mha"), chunked_case("trtllm_mla"), decode_case("torch_sdpa", 6, 0, padded=2)],
    ids=lambda case: case.backend,
)
def test_scripts_define_what_they_use_and_begin_with_the_calls(runner: Runner, case: Case, tmp_path: Path) -> None:
    path = exported(case, runner, tmp_path / "script.py")
    lint = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert lint.returncode == 0, lint.stdout
    text = path.read_text()
    assert "attnfuzz." not in text.replace("attnfuzz.kernels.fixup", "")
    assert text.index("def run():") < text.index("BUFFERS = [") < text.index("# Guarded memory")
    call = text[text.index("def run():") : text.index("BUFFERS = [")]
    assert len(call.splitlines()) <= 60 or case.backend == "trtllm_mla"


def test_a_script_that_lacks_a_package_does_not_pretend_to_show_a_fault(runner: Runner, tmp_path: Path) -> None:
    path = exported(draft_extend_case("trtllm_mha"), runner, tmp_path / "script.py")
    ran = subprocess.run([sys.executable, "-I", "-S", str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "pip install torch apache-tvm-ffi ninja" in ran.stderr


def test_kernels_of_others_can_not_be_exported(runner: Runner, defective: str) -> None:
    with pytest.raises(CannotExport, match="attend of NAN_ROW is not part of attnfuzz"):
        export_script(decode_case(f"{defective}:NAN_ROW"), runner)


@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("POSTPROCESSED", "changes what its kernels return"),
        ("OPTIONS", r"options is torch\.float32"),
        ("PLANNER", "no kernel was launched"),
    ],
)
def test_what_calls_do_not_show_can_not_be_exported(runner: Runner, defective: str, defect: str, words: str) -> None:
    with pytest.raises(CannotExport, match=words):
        export_script(decode_case(f"{defective}:{defect}"), runner)


def test_a_script_carries_no_more_than_it_can(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MAX_BYTES", 100)
    with pytest.raises(CannotExport, match="a script carries at most"):
        export_script(decode_case("torch_sdpa", 6, padded=1), runner)
