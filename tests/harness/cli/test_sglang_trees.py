"""Releases and source trees of SGLang on the command line, seen with a tree of a few lines."""

from pathlib import Path

import fake_sglang
import pytest
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.kernels.sglang.backends import SglangBackend
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case

REPORT = "sglang-21649"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree whose backend is right."""
    fake_sglang.need_nothing(monkeypatch)
    return fake_sglang.copy_tree(tmp_path / "checkout")


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """The case of a report, as it was found in a release."""
    reported = next(bug.case for bug in load_bugs() if bug.name == REPORT)
    assert isinstance(reported, Case)
    path = tmp_path / "case.json"
    case_file.save(path, fake_sglang.on_release(reported, "sglang==0.5.9:trtllm_mha"))
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang:trtllm_mha", "does not say which SGLang"),
        ("sglang==0.5.9", "is not a backend of SGLang: add :trtllm_mha or :trtllm_mla"),
        ("sglang==0.5.9:fa9", "'fa9' is not a backend of SGLang"),
        ("sglang==0.5.7:trtllm_mla", "from 0.5.9 on"),
        ("sglang@/no/such/folder:trtllm_mla", "/no/such/folder holds no source of SGLang"),
    ],
)
def test_a_wrong_name_is_sent_before_anything_is_fetched(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setattr(SglangBackend, "prepare", lambda *_: pytest.fail("fetched"))
    refused(attnfuzz("fuzz", "--backend", name), words)
    refused(attnfuzz("backends", name), words)


def test_a_missing_package_is_named(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.kernels.sglang.backends.NEEDS", ("no_such_package",))
    ran = attnfuzz("fuzz", "--backend", "sglang==0.5.9:trtllm_mha")
    refused(ran, "sglang==0.5.9:trtllm_mha can't run here", "no_such_package", "pip install 'attnfuzz[sglang]'")


def test_a_folder_without_sglang_is_reported(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    refused(attnfuzz("fuzz", "--sglang", str(tmp_path)), f"{tmp_path} holds no source of SGLang")
    refused(attnfuzz("fuzz", "--sglang", "absent"), "'absent' does not exist")
    refused(attnfuzz("backends", "--sglang", str(tmp_path)), "holds no source of SGLang")


def test_a_tree_that_nothing_is_asked_of_is_reported(
    attnfuzz: Attnfuzz, tree: Path, tmp_path: Path, case: Path
) -> None:
    refused(attnfuzz("fuzz", "--sglang", str(tree), "--backend", "trtllm_mha"), "tree is for sglang:trtllm_mha")
    other = tmp_path / "other.json"
    case_file.save(other, fake_sglang.on_release(case_file.load(case), "trtllm_mha"))
    refused(attnfuzz("replay", str(other), "--sglang", str(tree)), "'trtllm_mha' is not a backend of SGLang")


def test_calibrating_a_release_is_refused(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("calibrate", "--backend", "sglang==0.5.9:trtllm_mha"), "calibrate those")


@pytest.mark.slow
def test_a_tree_that_fails_to_import_is_sent_before_there_is_a_campaign(
    attnfuzz: Attnfuzz, tree: Path, tmp_path: Path
) -> None:
    (tree / "python/sglang/srt/layers/radix_attention.py").write_text("import no_such_module\n")
    (tree / "python/sglang/srt/layers/attention/trtllm_mha_backend.py").write_text("import no_such_module\n")
    refused(attnfuzz("fuzz", "--sglang", str(tree), "--examples", "1"), str(tree), "no_such_module", "pip install")
    assert not (tmp_path / "attnfuzz-out").exists()


@pytest.mark.slow
def test_backends_of_a_tree_are_listed(attnfuzz: Attnfuzz, tree: Path) -> None:
    ran = attnfuzz("backends", "--runnable", "--sglang", str(tree))
    assert ran.out.split() == [f"sglang@{tree}:{kind}" for kind in ENGINE.default_kinds]
    assert attnfuzz("backends", "--sglang", str(tree)).code == 0


@pytest.mark.slow
def test_the_list_says_how_releases_are_named_and_which_are_here(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path))
    out = " ".join(attnfuzz("backends").out.split())
    assert "--backend sglang==VERSION:trtllm_mha" in out
    assert "without a network: none" in out
    (tmp_path / "sglang" / "0.5.11" / "sglang").mkdir(parents=True)
    assert "without a network: 0.5.11." in " ".join(attnfuzz("backends").out.split())


@pytest.mark.slow
def test_a_case_of_a_release_is_replayed_on_a_tree(attnfuzz: Attnfuzz, tree: Path, case: Path) -> None:
    ran = attnfuzz("replay", str(case), "--sglang", str(tree))
    assert ran.code == 0, ran.err
    assert f"passes on sglang@{tree}:trtllm_mha" in "".join(ran.out.splitlines())
    fake_sglang.plan_for_the_padded_batch(tree)
    ran = attnfuzz("replay", str(case), "--sglang", str(tree))
    assert ran.code == 1
    assert "IllegalAccess" in ran.out
    assert "batch_size is 12" in ran.out


@pytest.mark.slow
def test_the_script_of_a_case_says_which_release_made_its_calls(
    attnfuzz: Attnfuzz, tree: Path, case: Path, tmp_path: Path
) -> None:
    fake_sglang.plan_for_the_padded_batch(tree)
    name = f"sglang@{tree}:trtllm_mha"
    case_file.save(case, fake_sglang.on_release(case_file.load(case), name))
    ran = attnfuzz("export", str(case), "-o", str(tmp_path / "repro.py"))
    assert ran.code == 0, ran.err
    script = (tmp_path / "repro.py").read_text()
    assert f"in calls that {name} made in draft_extend_v2" in " ".join(script.split())
    assert "attnfuzz.kernels" not in script


def test_bugs_are_run_on_the_releases_that_have_them(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("bugs", "run", "--releases", "vllm-50781"), "none of these bugs is in a release")
    refused(attnfuzz("bugs", "run", "--releases", "--device", "cpu"), "leave --device out")
    shown = attnfuzz("bugs", "show", REPORT)
    assert "sglang==0.5.9:trtllm_mha" in shown.out
