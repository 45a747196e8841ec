"""What a measurement of the judge's power gave outlives the command that made it."""

from pathlib import Path

import msgspec
import pytest

from attnfuzz.harness.defects.results import DefectScore, DefectScoreError, read_score
from attnfuzz.harness.defects.search import Kill, SearchOutcome
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.tiers import Tier

KILL = Kill(by="T1", kind=Kind.OUTPUT_MISMATCH, place="out", mode="decode", also=())
SCORE = DefectScore(
    attnfuzz="1.0",
    examples=2000,
    seeds=(1, 2),
    without=(Tier.T3,),
    killed=1,
    defects=2,
    searches=(
        SearchOutcome(defect="dies", seed=1, examples=5, seconds=0.1, unconfirmed=0, kill=KILL),
        SearchOutcome(defect="lives", seed=1, examples=2000, seconds=9.0, unconfirmed=1, kill=None),
        SearchOutcome(defect="lives", seed=2, examples=2000, seconds=9.0, unconfirmed=0, kill=None),
    ),
)


def test_a_score_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "score.json").write_bytes(msgspec.json.encode(SCORE))
    assert read_score(tmp_path / "score.json") == SCORE


def test_survivors_are_named_once() -> None:
    assert SCORE.survivors == ["lives"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff"])
def test_a_file_that_is_no_score_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(DefectScoreError, match=r"^.*other.json was not written by attnfuzz defects run --json: .*$"):
        read_score(path)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DefectScoreError, match=r"cannot read .*: No such file"):
        read_score(tmp_path / "gone.json")
