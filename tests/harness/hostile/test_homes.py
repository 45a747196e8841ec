"""One bad byte in a home stops no night: what can't be read is set aside and named, and the rest goes on."""

import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Attnfuzz
from damage import DAMAGES, damage
from fake_archive import FINGERPRINT, archive, found
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.failures import Kind

pytestmark = pytest.mark.slow


def damages_of(*names: str) -> pytest.MarkDecorator:
    """Each damage to each of these: to one of them in `make test`, in turn, and to the others in `make test-long`."""
    values = []
    for turn, kind in enumerate(DAMAGES):
        for index, name in enumerate(names):
            marks = () if turn % len(names) == index else pytest.mark.long
            values.append(pytest.param(name, kind, marks=marks))
    return pytest.mark.parametrize(("name", "kind"), values)


def one_finding(home: Home) -> Path:
    return next(path for path in home.findings.iterdir() if "EmptyRow" in path.name)


def clean(ran: Any) -> None:
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err


@damages_of("case.json", "finding.json")
def test_a_finding_that_can_not_be_read_is_set_aside(attnfuzz: Attnfuzz, home: Home, name: str, kind: str) -> None:
    broken = one_finding(home)
    damage(broken / name, kind)
    for command in (("findings", "list", "--home", "out"), ("report", "--home", "out")):
        ran = attnfuzz(*command)
        clean(ran)
        assert ran.err.startswith("Warning: skipped a finding: ")
        assert str(Path("out/findings") / broken.name / name) in ran.err
        assert len(ran.err.splitlines()) == 1
    assert "OutputMismatch" in attnfuzz("findings", "list", "--home", "out").out
    clean(attnfuzz("findings", "show", "OutputMismatch", "--home", "out"))


@damages_of("case.json", "finding.json", "")
def test_a_finding_that_can_not_be_read_is_filed_anew(home: Home, name: str, kind: str) -> None:
    broken = one_finding(home)
    damage(broken / name if name else broken, kind)
    night = archive(home.path, "night 2", now=1.0)
    assert [record.observation.kind for record in night.past(["torch_sdpa"])] == [Kind.OUTPUT_MISMATCH]
    assert len(night.troubles) == (name != "" or kind != "missing")
    case = found().case.having(backend="torch_sdpa")
    night.checked(broken.name, fails=True)
    path, state = night.file(replace(found(kind=Kind.EMPTY_ROW), case=case), replace(FINGERPRINT, kind=Kind.EMPTY_ROW))
    assert path == broken
    assert state in {State.NEW, State.OPEN}
    assert len(archive(home.path, "night 3").past(["torch_sdpa"])) == 2


@damages_of(".draft-x", ".replaced-x", "x/.draft-finding.json.1")
def test_leftovers_of_a_killed_campaign_may_be_damaged(home: Home, name: str, kind: str) -> None:
    (home.findings / "x").mkdir()
    damage(home.findings / name, kind)
    archive(home.path, "night 2")
    archive(home.path, "night 3")
    assert not os.path.lexists(home.findings / name)


@damages_of("report.txt", "repro.py", "environment.json")
def test_the_texts_of_a_finding_can_be_done_without(attnfuzz: Attnfuzz, home: Home, name: str, kind: str) -> None:
    damage(one_finding(home) / name, kind)
    clean(attnfuzz("findings", "show", "EmptyRow", "--home", "out"))
    clean(attnfuzz("report", "--home", "out", "--issue", "a-finding", "issue.md"))
    clean(attnfuzz("report", "--home", "out"))


def test_the_target_of_a_link_in_a_finding_is_not_shown(attnfuzz: Attnfuzz, home: Home, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password")
    for name in ("report.txt", "repro.py"):
        (one_finding(home) / name).unlink(missing_ok=True)
        (one_finding(home) / name).symlink_to(tmp_path / "secret")
    assert "password" not in attnfuzz("findings", "show", "EmptyRow", "--home", "out").out


def test_links_are_not_followed_to_where_a_campaign_writes(home: Home, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    one_finding(home).rename(outside)
    broken = home.findings / "linked"
    broken.symlink_to(outside)
    before = (outside / "finding.json").read_bytes()
    (outside / ".draft-mine").touch()
    night = archive(home.path, "night 2")
    assert len(night.past(["torch_sdpa"])) == 1
    assert "linked is not a folder" in night.troubles[0]
    assert (outside / "finding.json").read_bytes() == before
    assert (outside / ".draft-mine").exists()


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind not in {"missing", "empty"}])
def test_an_index_that_can_not_be_read_is_set_aside(attnfuzz: Attnfuzz, home: Home, kind: str) -> None:
    index = home.corpus / "index.ndjson"
    lines = index.read_bytes().splitlines(keepends=True)
    damage(index, kind)
    if index.is_file() and kind not in {"huge", "link to a device"}:
        # Its first line alone is damaged.
        index.write_bytes(index.read_bytes().splitlines()[0] + b"\n" + b"".join(lines[1:]))
    for command in (("list",), ("prune", "--dry-run")):
        ran = attnfuzz("corpus", *command, "--home", "out")
        clean(ran)
        assert ran.err.startswith("Warning: out/corpus/index.ndjson")
    corpus = Corpus(home.corpus)
    assert corpus.keep(decode_case("torch_sdpa", 17), why=Why.FAILURE)
    assert Corpus(home.corpus).troubles == []
    assert len(Corpus(home.corpus).kept()) == 3
    assert list(home.corpus.glob(".aside-*"))


def test_a_line_of_the_index_that_is_damaged_is_passed_over(attnfuzz: Attnfuzz, home: Home) -> None:
    index = home.corpus / "index.ndjson"
    index.write_bytes(index.read_bytes() + b'{"case": "\xff"}\n' + b"[" * 3000 + b"\n")
    ran = attnfuzz("corpus", "list", "--home", "out")
    clean(ran)
    assert [line.partition(" is ")[0] for line in ran.err.splitlines()] == [
        "Warning: out/corpus/index.ndjson, line 4",
        "Warning: out/corpus/index.ndjson, line 5",
    ]
    assert "2 cases: 2 for failure" in ran.out


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_case_of_a_corpus_that_can_not_be_read_is_passed_over(attnfuzz: Attnfuzz, home: Home, kind: str) -> None:
    path = next(home.corpus.glob("*/*.json"))
    damage(path, kind)
    clean(attnfuzz("corpus", "list", "--home", "out"))
    clean(attnfuzz("corpus", "merge", "out", "--home", "other"))
    clean(attnfuzz("corpus", "prune", "--home", "out"))
    corpus = Corpus(home.corpus)
    for lengths in (3, 9):
        corpus.keep(decode_case("torch_sdpa", lengths), why=Why.FAILURE)
    assert len(Corpus(home.corpus).kept()) == 2


@pytest.mark.parametrize("kind", ["FIFO", "empty", "link to itself", "link to a device"])
def test_a_folder_of_a_corpus_may_be_something_else(home: Home, kind: str) -> None:
    damage(home.corpus / "torch_sdpa", kind)
    corpus = Corpus(home.corpus)
    assert corpus.kept() == []
    corpus.keep(decode_case("torch_sdpa", 17), why=Why.FAILURE)
    assert len(Corpus(home.corpus).kept()) == 1


@pytest.mark.parametrize("kind", ["FIFO", "folder", "link to itself", "link to a device"])
def test_a_lock_that_is_none_is_named(attnfuzz: Attnfuzz, home: Home, kind: str) -> None:
    damage(home.path / "lock", kind)
    ran = attnfuzz("findings", "forget", one_finding(home).name, "--home", "out")
    assert ran.code == 2
    assert ran.err.startswith("Error: ")
    assert "out/lock" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_log_that_can_not_be_read_is_named(attnfuzz: Attnfuzz, home: Home, kind: str) -> None:
    damage(home.log("20260501-043000"), kind)
    for command in (("report", "--home", "out"), ("fuzz", "--resume", "--home", "out")):
        ran = attnfuzz(*command)
        assert ran.code == 2
        assert ran.err.startswith("Error: ")
        assert len(ran.err.splitlines()) == 1
