"""What is looked for in every release, and which failures count."""

from pathlib import Path

import pytest
from fake_archive import FINGERPRINT
from fake_search import of_steps
from harness_cases import CALLS, decode_case
from msgspec.structs import replace

from attnfuzz.harness.findings.archive import Archive, read_records
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.sightings import Sighting
from attnfuzz.harness.releases.wanted import (
    NotOfTheEngine,
    Wanted,
    file_name,
    fingerprint_anywhere,
    found,
    given,
    reported,
)
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Mode

MHA = "sglang==0.5.9:trtllm_mha"
FAULT = Observation(kind=Kind.ILLEGAL_ACCESS, place="seq_lens", message="read", mode="decode", kernel="attend")
MISMATCH = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="1 instead of 2", mode="decode", kernel="attend")


class Judge(OneByOne):
    """Gives every case the same verdict."""

    def __init__(self, *seen: Observation) -> None:
        self._verdict = Verdict(observations=seen)

    def verdict(self, case: Case) -> Verdict:
        return self._verdict

    def renew(self) -> None: ...


def wanted(**given: object) -> Wanted:
    return replace(Wanted(name="n", title="t", kind="trtllm_mha", case=decode_case(MHA)), **given)


def record(backend: str, *lengths: int, seen: Observation = MISMATCH) -> Record:
    case = decode_case(backend, *lengths)
    finding = Finding(case=case, first=case, observation=seen, report="")
    sighting = Sighting(campaign="night", time=0.0, failed=True, environment={})
    fingerprint = Fingerprint.of(backend, seen)
    return Record(
        name=finding.name, path=Path(), case=case, fingerprint=fingerprint, observation=seen, sightings=(sighting,)
    )


def test_a_report_is_shown_by_failures_of_its_kinds() -> None:
    report = wanted(kinds=(Kind.ILLEGAL_ACCESS,))
    assert report.shown_by(Verdict(observations=(MISMATCH, FAULT))) == FAULT
    assert report.shown_by(Verdict(observations=(MISMATCH,))) is None


def test_a_finding_is_shown_by_its_fingerprint_in_whatever_backend() -> None:
    finding = wanted(fingerprint=fingerprint_anywhere(MISMATCH))
    assert finding.shown_by(Verdict(observations=(FAULT, MISMATCH))) == MISMATCH
    assert finding.shown_by(Verdict(observations=(replace(MISMATCH, mode="verify"),))) is None


def test_a_fault_is_the_same_wherever_it_lands() -> None:
    finding = wanted(fingerprint=fingerprint_anywhere(FAULT))
    elsewhere = replace(FAULT, place="kv_cache")
    assert finding.shown_by(Verdict(observations=(elsewhere,))) == elsewhere


def test_a_case_alone_is_shown_by_any_failure_but_no_gap() -> None:
    assert wanted().shown_by(Verdict(observations=(replace(FAULT, gap=True), MISMATCH))) == MISMATCH
    assert wanted().shown_by(Verdict(observations=(replace(FAULT, gap=True),))) is None


def test_the_reports_that_a_release_can_be_asked_about_are_those_of_its_project_and_kinds() -> None:
    bugs = load_bugs()
    names = {each.name for each in reported(bugs, ENGINE, ENGINE.kinds, Judge())}
    assert names >= {"sglang-21649", "sglang-21987", "sglang-22688", "sglang-24566", "sglang-24856"}
    assert all(name.startswith("sglang-") for name in names)
    of_mla = reported(bugs, ENGINE, ["trtllm_mla"], Judge())
    assert {each.kind for each in of_mla} == {"trtllm_mla"}
    assert "sglang-21649" not in {each.name for each in of_mla}


def test_a_reported_fault_is_one_in_the_kernel_in_which_our_backend_has_it() -> None:
    """A fault in another kernel is another bug, though the case is the same."""
    reports = {each.name: each for each in reported(load_bugs(), ENGINE, ENGINE.kinds, Judge(MISMATCH, FAULT))}
    one = reports["sglang-21649"]
    assert one.where == "attend"
    assert one.shown_by(Verdict(observations=(FAULT,))) == FAULT
    assert one.shown_by(Verdict(observations=(replace(FAULT, kernel="merge"),))) is None
    assert reports["sglang-22688"].where == ""


def test_a_reported_exception_is_one_of_the_same_type() -> None:
    raised = Observation(kind=Kind.RAISED, place="ValueError", message="too many heads")
    bug = next(each for each in load_bugs() if each.name == "sglang-21649")
    (one,) = reported([replace(bug, kinds=(Kind.RAISED,))], ENGINE, ENGINE.kinds, Judge(raised))
    assert one.where == "ValueError"
    assert one.shown_by(Verdict(observations=(replace(raised, place="TypeError"),))) is None


def test_a_report_that_cannot_be_shown_here_is_not_searched_for() -> None:
    """How it fails is not known here, and whatever else a release raises would be taken for it."""
    bug = next(each for each in load_bugs() if each.name == "sglang-21649")
    elsewhere = replace(bug, release="", shown_by="", why_not_here="needs a cluster")
    assert reported([elsewhere], ENGINE, ENGINE.kinds, Judge()) == []


def test_after_a_wrong_number_any_kernel_may_have_been_the_last() -> None:
    both = wanted(kinds=(Kind.ILLEGAL_ACCESS, Kind.OUTPUT_MISMATCH), where="merge")
    assert both.shown_by(Verdict(observations=(FAULT, MISMATCH))) == MISMATCH


def test_a_report_has_the_case_by_which_a_release_shows_it() -> None:
    """Draft extends of speculation v1 fail in releases with the fix as well; what it mended is v2."""
    (one,) = (each for each in reported(load_bugs(), ENGINE, ENGINE.kinds, Judge()) if each.name == "sglang-21987")
    assert {step.mode for step in of_steps(one.case).steps} == {Mode.DRAFT_EXTEND_V2}


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("sglang==0.5.9:trtllm_mha", "trtllm_mha"),
        ("sglang@/a/tree+x@2:trtllm_mla", "trtllm_mla"),
        ("trtllm_mha@21649-before", "trtllm_mha"),
        ("trtllm_mla+k_scale_twice", "trtllm_mla"),
        ("hopper:trtllm_mha@24566", "trtllm_mha"),
        ("torch_sdpa", None),
        ("mine.py:trtllm_mha", None),
    ],
)
def test_the_kind_of_a_backend(backend: str, kind: str | None) -> None:
    assert ENGINE.kind_of(backend) == kind


def test_a_release_and_a_tree_are_backends() -> None:
    assert ENGINE.backend("0.5.9", "trtllm_mha") == "sglang==0.5.9:trtllm_mha"
    assert ENGINE.backend("@/a/tree", "trtllm_mla") == "sglang@/a/tree:trtllm_mla"


def test_a_case_file_is_looked_for_by_any_failure(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    case_file.save(path, decode_case(MHA))
    one = given(path, ENGINE, ENGINE.kinds)
    assert (one.name, one.kind, one.fingerprint, one.reported) == ("mine", "trtllm_mha", None, False)


def test_a_finding_on_file_is_looked_for_by_how_it_fails(tmp_path: Path) -> None:
    case = decode_case(MHA)
    finding = Finding(case=case, first=case, observation=MISMATCH, report="")
    archive = Archive(tmp_path / "findings", tmp_path / "unconfirmed", campaign="night", environment={})
    path, _ = archive.file(finding, FINGERPRINT)
    one = given(path, ENGINE, ENGINE.kinds)
    assert one.fingerprint == fingerprint_anywhere(MISMATCH)
    (again,) = found(read_records(tmp_path / "findings")[0], {MHA: ("0.5.9", "trtllm_mha")})
    assert again == replace(one, found=("0.5.9",))


def test_a_case_that_no_release_can_be_asked_about_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    case_file.save(path, decode_case("torch_sdpa"))
    with pytest.raises(NotOfTheEngine, match="is a case of torch_sdpa: a sweep of sglang replays those of trtllm_mha,"):
        given(path, ENGINE, ENGINE.kinds)
    case_file.save(path, decode_case(MHA))
    with pytest.raises(NotOfTheEngine, match="replays those of trtllm_mla"):
        given(path, ENGINE, ["trtllm_mla"])
    case_file.save(path, CALLS)
    with pytest.raises(NotOfTheEngine, match="literal calls"):
        given(path, ENGINE, ENGINE.kinds)


def test_the_same_failure_of_several_releases_is_one_with_the_oldest_case() -> None:
    backends = {ENGINE.backend(release, "trtllm_mha"): (release, "trtllm_mha") for release in ("0.5.9", "0.5.11")}
    newer, older = record("sglang==0.5.11:trtllm_mha", 4), record(MHA, 6)
    other = record(MHA, 6, seen=FAULT)
    elsewhere = record("sglang==0.5.14:trtllm_mha", 4)
    several = found([newer, elsewhere, older, other], backends)
    assert [(each.found, each.case) for each in several] == [
        (("0.5.9", "0.5.11"), older.case),
        (("0.5.9",), other.case),
    ]
    assert len({each.name for each in several}) == 2


def test_a_kept_case_has_a_name_that_is_a_file_s() -> None:
    assert file_name(wanted(name="sglang-21649"), "0.5.10.post1") == "sglang-21649-0.5.10.post1.json"
    assert file_name(wanted(name="a/b"), "@/a tree/sglang") == "a_b-a_tree_sglang.json"
