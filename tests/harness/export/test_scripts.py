"""Exported scripts: they run without attnfuzz, show what failed, and find nothing wrong with what is right."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness_cases import calls_of, chunked_case, decode_case, draft_extend_case
from msgspec.structs import replace
from run_scripts import outcomes
from small_cases import drawn, in_memory, narrowest, with_nan_queries

from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.export import CannotExport, Target, export_script, script
from attnfuzz.harness.reduce import reduce
from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import Buffer, CallCase, Drawn, View
from attnfuzz.reference.case import Case, Guard, Outputs
from attnfuzz.reference.dtypes import DType

LOADED = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
assert isinstance(LOADED, CallCase)
SHORT: CallCase = LOADED
"""A batch of three, with lengths for two."""

REVISED = [bug for bug in load_bugs() if "@" in bug.shown_by]
"""Bugs in planners: a script can carry the kernels along."""

LARGE = ("flashinfer-3047", "sglang-22688")
"""Bugs with scripts of some 10 MB."""

SHRUNK = ("sglang-21649", "sglang-21987", "sglang-22688")
"""One bug for each way to fail: by a fault, wrong strides, and rows that are not written."""

FAKES = Path(__file__).parents[2] / "fakes"

WITHOUT_ATTNFUZZ = """
import sys, torch, tvm_ffi.cpp

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "attnfuzz":
            raise ImportError("attnfuzz is not to be imported")

sys.path.append(sys.argv[1])
from run_scripts import run_each
sys.meta_path.insert(0, Blocked())
run_each(sys.argv[2:])
"""


def drawn_contents() -> CallCase:
    """The call with drawn queries, and a note."""
    query = Buffer(name="query", dtype=DType.BFLOAT16, size=24, drawn=Drawn(seed=7, mean=1.0, std=0.5))
    return replace(SHORT, buffers=(query, *SHORT.buffers[1:]), notes=('the pool had 900 pages, "tight" \\ now',))


def with_layout(layout: str) -> CallCase:
    (call,) = SHORT.calls
    return replace(SHORT, calls=(replace(call, arguments=call.arguments | {"kv_layout": layout}),))


def overwriting() -> CallCase:
    """Two of three rows fit, and the third goes where no page is closed: past the end of a buffer guarded left."""
    (call,) = SHORT.calls
    short = View(buffer="out", shape=(2, 1, 8), stride=(8, 8, 1))
    lengths = View(buffer="cum_seq_lens_q", shape=(3,), stride=(1,), offset=1)
    changes = {"batch_size": 2, "query": replace(short, buffer="query"), "out": short, "cum_seq_lens_q": lengths}
    two = replace(call, arguments=call.arguments | changes)
    buffers = (*SHORT.buffers[:-1], replace(SHORT.buffers[-1], size=16))
    return replace(SHORT, calls=(two,), buffers=buffers, guard=Guard.LEFT)


def overwriting_its_buffer() -> CallCase:
    """The third row goes into the buffer of the output, as into the gaps between rows of an output with gaps."""
    return replace(overwriting(), buffers=SHORT.buffers)


def masked() -> Case:
    """A case under custom masks, of a server that lays them out as if all were as long as the longest."""
    pinned = json.loads((Path(__file__).parents[2] / "defects" / "custom_mask_padded_to_the_longest.json").read_text())
    case = case_file.decode(json.dumps(pinned["case"]).encode())
    assert isinstance(case, Case)
    return case


ENGINE = f"{FAKES / 'engine_functions.py'}"

OVERWRITES = "overwritten beside out"
RAISES, RAISES_UNSEEN = "raises", "raises what was not seen"

FAILING: dict[str, tuple[AnyCase, str]] = {
    "fault": (draft_extend_case("trtllm_mha@21649-before"), "a read at cum_seq_lens_q: 0 bytes past its end"),
    "fault behind poison": (draft_extend_case("trtllm_mha@24566", Guard.LEFT), "died of SIGSEGV"),
    "unwritten": (chunked_case("trtllm_mla@22688-before"), "was never written: it holds nan, as before the calls"),
    "stale": (chunked_case("trtllm_mla@22688-before", Outputs.STALE), " times the allowed error; "),
    "calls": (SHORT, "a read at seq_lens: 0 bytes past its end"),
    "drawn contents": (drawn_contents(), "a read at seq_lens: 0 bytes past its end"),
    OVERWRITES: (overwriting(), "the memory beside out was overwritten"),
    "overwritten between rows": (overwriting_its_buffer(), "memory outside of the rows of out was overwritten"),
    "a mask": (masked(), " times the allowed error; "),
    "FlashAttention": (decode_case(f"{ENGINE}:with_kvcache_one_key_less", 6, 3, 9), " times the allowed error; "),
    "a wrapper": (decode_case(f"{ENGINE}:paged_run_other_page", 6, 3, 9), "died of SIGSEGV, a read at k_cache"),
    RAISES: (with_layout("HDN"), "seen: ValueError: kv_layout must be HND or NHD, not 'HDN'"),
}
PASSING = ("trtllm_mha", "trtllm_mla", "torch_sdpa", "trtllm_mha_masked")
"""Backends whose drawn cases pass."""


@pytest.fixture(scope="module")
def ran(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What `run_scripts` returns for the scripts of all but large cases."""
    return run_scripts(dict(made(runner)), tmp_path_factory.mktemp("scripts"))


def run_scripts(scripts: dict[str, str], folder: Path) -> dict[str, tuple[int, str]]:
    """The exit code of each script and what it printed, where attnfuzz can't be imported."""
    paths = {name: folder / f"{index}.py" for index, name in enumerate(scripts)}
    for name, text in scripts.items():
        paths[name].write_text(text)
    # One process that imports torch, and the user's cache for the kernels: a script takes no time to speak of then.
    run = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_ATTNFUZZ, str(FAKES), *map(str, paths.values())],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert run.returncode == 0, run.stderr
    return outcomes(paths, run.stdout)


def made(runner: Runner) -> Iterator[tuple[str, str]]:
    """All scripts that are run, by name."""
    for name, (case, _) in FAILING.items():
        yield name, export_script(case, runner)
    yield RAISES_UNSEEN, export_script(SHORT, runner).replace("batch_size=3", "batch_size=3, kv_layout='HDN'")
    yield (
        "no right answer",
        export_script(with_nan_queries(calls_of(runner, decode_case("trtllm_mha", 6, 9, padded=2))), runner),
    )
    for bug in REVISED:
        if bug.name not in LARGE:
            yield bug.name, export_script(bug.case_before, runner)
    for backend in PASSING:
        for index, case in enumerate(narrowest(in_memory(drawn(backend, 7)), 2)):
            if any(request.q_len and request.kv_len for request in case.steps[-1].requests):
                yield f"{backend} {index}", export_script(case, runner)


def calls_in(text: str) -> str:
    """The function of a script that makes the calls."""
    (found,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "run")
    return str(ast.get_source_segment(text, found))


@pytest.mark.slow
@pytest.mark.parametrize("backend", PASSING)
def test_scripts_of_passing_cases_find_nothing_wrong(ran: dict[str, tuple[int, str]], backend: str) -> None:
    own = [found for name, found in ran.items() if name.startswith(f"{backend} ")]
    assert own
    assert [code for code, _ in own] == [0] * len(own), own
    assert any("no error of " in output for _, output in own)


@pytest.mark.parametrize("bug", [bug for bug in REVISED if bug.name not in LARGE], ids=lambda bug: bug.name)
def test_scripts_of_reported_bugs_show_the_fault(ran: dict[str, tuple[int, str]], bug: Bug) -> None:
    shows_the_fault(*ran[bug.name])


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_large_scripts_of_reported_bugs_show_the_fault(runner: Runner, name: str, tmp_path: Path) -> None:
    (bug,) = (bug for bug in REVISED if bug.name == name)
    shows_the_fault(*run_scripts({name: export_script(bug.case_before, runner)}, tmp_path)[name])


def shows_the_fault(code: int, output: str) -> None:
    assert code == 1
    assert "the fault shows" in output
    assert re.search("died of SIGSEGV, a (read|write) at | rows are wrong|rows of no new token were changed", output)


@pytest.mark.parametrize("name", FAILING)
def test_scripts_show_faults_wrong_values_and_damaged_buffers(ran: dict[str, tuple[int, str]], name: str) -> None:
    code, output = ran[name]
    assert code == 1, output
    assert FAILING[name][1] in output


def test_a_script_of_an_engines_call_says_that_a_function_of_its_own_takes_it(runner: Runner) -> None:
    script = export_script(FAILING["a wrapper"][0], runner)
    assert "paged_run() stands in for BatchPrefillWithPagedKVCacheWrapper.run: it runs on the CPU" in script
    assert "paged_kv_indices=" in calls_in(script)
    assert "from typing" not in script.partition("try:")[2].partition("except")[0]


def test_a_case_fails_in_the_way_that_its_script_has_to_show(runner: Runner) -> None:
    def seen(name: str) -> list[tuple[Kind, str]]:
        return [(failure.kind, failure.place) for failure in runner.verdict(FAILING[name][0]).failures]

    assert seen(OVERWRITES) == [(Kind.CANARY_OVERWRITTEN, "out")]
    assert [kind for kind, _ in seen(RAISES)] == [Kind.UNEXPECTED_REJECTION]


def test_an_exception_that_was_not_seen_only_means_that_the_script_could_not_run(
    ran: dict[str, tuple[int, str]],
) -> None:
    code, output = ran[RAISES_UNSEEN]
    assert code == 2
    assert FAILING[RAISES][1] in output


def test_rows_without_a_right_answer_are_compared_with_nothing(ran: dict[str, tuple[int, str]]) -> None:
    code, output = ran["no right answer"]
    assert code == 0, output
    assert "request 1: no right answer, since its keys or values are not finite" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if bug.name in SHRUNK else pytest.mark.long, id=bug.name) for bug in REVISED],
)
def test_the_calls_of_a_shrunk_report_fit_sixty_lines(runner: Runner, bug: Bug) -> None:
    case = bug.case_before
    assert isinstance(case, Case)
    kind = runner.verdict(case).failures[0].kind

    def still_fails(candidate: Case) -> bool:
        return kind in {failure.kind for failure in runner.verdict(candidate).failures}

    small = reduce(case, still_fails, budget=200)
    for target in Target:
        # FlashInfer has no attention of torch's, and none of the writers.
        if target is Target.NATIVE or not bug.backend_before.startswith(("torch", "native:")):
            assert len(calls_in(export_script(small, runner, target=target)).splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("guard", list(Guard))
@pytest.mark.parametrize("target", list(Target))
def test_the_memory_in_front_of_calls_that_fault_fits_forty_lines(runner: Runner, target: Target, guard: Guard) -> None:
    text = export_script(draft_extend_case("trtllm_mha@24566", guard), runner, target=target)
    front = text[text.index("# Memory between inaccessible pages") : text.index("def memory(")]
    assert len(front.splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        draft_extend_case("trtllm_mha"),
        chunked_case("trtllm_mla"),
        decode_case("torch_sdpa", 6, 0, padded=2),
        draft_extend_case("trtllm_mha@24566"),
        chunked_case("trtllm_mla@22688-before"),
    ],
    ids=lambda case: case.backend,
)
def test_scripts_define_all_names_and_begin_with_the_calls(runner: Runner, case: Case, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(export_script(case, runner))
    lint = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert lint.returncode == 0, lint.stdout
    text = path.read_text()
    assert "attnfuzz." not in text.replace("attnfuzz.kernels.planning.fixup", "")
    assert (
        text.index("def run():") < text.index("def allocate(") < text.index("def main():") < text.index("# The kernels")
    )


def test_a_fault_is_shown_without_contents(runner: Runner) -> None:
    text = export_script(draft_extend_case("trtllm_mha@24566"), runner)
    assert 'query = memory("query", torch.bfloat16, normal(384, seed=1))' in text
    assert "PACKED" not in text


def test_contents_on_which_a_failure_depends_are_kept(runner: Runner) -> None:
    assert 'memory("query", torch.bfloat16, packed("query"))' in export_script(
        chunked_case("trtllm_mla@22688-before"), runner
    )


def test_a_scale_without_value_is_in_the_script(runner: Runner) -> None:
    pin = load_pin(Path(__file__).parents[2] / "defects", "root_of_the_scale")
    assert pin is not None
    assert "bmm1_scale=math.nan" in export_script(pin.case, runner)


def test_memory_is_guarded_only_where_a_fault_needs_it(runner: Runner) -> None:
    assert "mprotect" in export_script(draft_extend_case("trtllm_mha@24566"), runner)
    assert "mprotect" not in export_script(chunked_case("trtllm_mla@22688-before"), runner)


def test_drawn_contents_stay_short_and_notes_are_in_the_head(runner: Runner) -> None:
    text = export_script(drawn_contents(), runner)
    assert "normal(24, seed=7, mean=1.0, std=0.5)" in text
    assert 'the pool had 900 pages, "tight" \\ now' in str(ast.get_docstring(ast.parse(text)))


@pytest.mark.slow
def test_a_script_that_lacks_a_package_does_not_pretend_to_show_a_fault(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(export_script(draft_extend_case("trtllm_mha"), runner))
    ran = subprocess.run([sys.executable, "-I", "-S", str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "pip install torch apache-tvm-ffi ninja" in ran.stderr


def test_kernels_of_others_can_not_be_exported(runner: Runner, defective: str) -> None:
    with pytest.raises(CannotExport, match="attend of NAN_ROW is not part of attnfuzz"):
        export_script(decode_case(f"{defective}:NAN_ROW"), runner)


@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("POSTPROCESSED", "changes its kernels' results"),
        ("OPTIONS", r"options is torch\.float32"),
        ("PLANNER", "no kernel was launched"),
    ],
)
def test_a_failure_that_calls_do_not_show_cannot_be_exported(
    runner: Runner, defective: str, defect: str, words: str
) -> None:
    with pytest.raises(CannotExport, match=words):
        export_script(decode_case(f"{defective}:{defect}"), runner)


def test_a_script_carries_no_more_than_it_can(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MAX_BYTES", 100)
    with pytest.raises(CannotExport, match="a script carries at most"):
        export_script(decode_case("torch_sdpa", 6, padded=1), runner)
