"""The reported bugs: each fails before its fix as the report says, and passes after it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.harness.bugs import FOLDER, Bug, BugFileError, load_bugs
from attnfuzz.harness.check import Runner
from attnfuzz.harness.registry import fixed, names

BUGS = load_bugs()


def test_there_is_an_entry_for_each_report() -> None:
    sources = {bug.source.removeprefix("https://github.com/") for bug in BUGS}
    assert {f"sgl-project/sglang/pull/{pull}" for pull in (21649, 21987, 22688, 24566, 24856)} <= sources


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_an_entry_names_a_revision_and_its_fix(bug: Bug) -> None:
    assert {bug.backend_before, bug.backend_after} <= set(names())
    assert bug.backend_after == fixed(bug.backend_before) != bug.backend_before
    assert bug.source.startswith("https://github.com/")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_reported_bug_fails_before_its_fix_and_passes_after_it(runner: Runner, bug: Bug) -> None:
    before = runner.verdict(replace(bug.case, backend=bug.backend_before))
    assert before.failures
    assert before.failures[0].kind in bug.kinds
    after = runner.verdict(replace(bug.case, backend=bug.backend_after))
    assert after.failures == ()
    assert after.unsupported is None
    assert after.rows > 0


def test_a_folder_without_entries_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BugFileError, match=r"no bug entries in .*: reinstall attnfuzz"):
        load_bugs(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"kinds"', '"sorts"', "unknown field `sorts`"),
        ('"IllegalAccess"', '"BadLuck"', "Invalid enum value 'BadLuck'"),
        ('"padded_tokens": 48', '"padded_tokens": 39', "padded_tokens"),
        ('"sglang-21649"', '"sglang-1"', "is named sglang-1 inside"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (FOLDER / "sglang-21649.json").read_text()
    assert old in text
    (tmp_path / "sglang-21649.json").write_text(text.replace(old, new))
    with pytest.raises(BugFileError, match=r"bug entry sglang-21649\.json") as caught:
        load_bugs(tmp_path)
    assert words in str(caught.value)
