"""Logs that an older release wrote are read as if this one had written them."""

import json
from pathlib import Path

import msgspec
import pytest

from attnfuzz.harness.campaign.events import CampaignStarted, Progress, SliceFinished, SliceStarted
from attnfuzz.harness.campaign.log import LogError, read_log
from attnfuzz.harness.search.messages import SliceKind, Tally

CAMPAIGN = CampaignStarted(
    at=0.0,
    campaign="20260601-220000",
    time=1.8e9,
    attnfuzz="0.1.0",
    environment={},
    backends=("fake",),
    preset="default",
    examples=100,
    seconds=None,
    seed=1,
    jobs=1,
    contract="declared",
    alpha=0.001,
)
STARTED: dict[str, object] = {"event": "SliceStarted", "at": 1.0, "job": 0, "backend": "fake", "seed": 1, "examples": 9}
FINISHED: dict[str, object] = {
    "event": "SliceFinished",
    "at": 1.0,
    "backend": "fake",
    "seed": 1,
    "examples": 9,
    "cases": 9,
    "deaths": 0,
    "seconds": 1.0,
    "unsupported": {},
}


def log_of(path: Path, *events: dict[str, object], version: int = 2) -> Path:
    """A log of that version."""
    first = msgspec.json.decode(msgspec.json.encode(CAMPAIGN)) | {"log_version": version}
    path.write_text("".join(json.dumps(event) + "\n" for event in (first, *events)))
    return path


@pytest.mark.parametrize(
    ("number", "kind", "index"),
    [(0, SliceKind.DRAWN, 0), (7, SliceKind.DRAWN, 7), (-1, SliceKind.KEPT, None), (-2, SliceKind.ONCE_MORE, None)],
)
def test_version_2_wrote_what_a_slice_is_as_its_number(
    tmp_path: Path, number: int, kind: SliceKind, index: int | None
) -> None:
    old = log_of(tmp_path / "old", STARTED | {"index": number}, FINISHED | {"index": number})
    _, began, ended = read_log(old)
    assert isinstance(began, SliceStarted)
    assert isinstance(ended, SliceFinished)
    assert (began.kind, began.index) == (ended.kind, ended.index) == (kind, index)


def test_version_2_counted_beside_the_name_of_the_backend(tmp_path: Path) -> None:
    counted = {
        "searched": 5,
        "cases": 6,
        "deaths": 1,
        "shrinking": True,
        "margins": {"T1": 0.5},
        "phases": {"judge": 2},
    }
    old = log_of(tmp_path / "old", {"event": "Progress", "at": 1.0, "backend": "fake", **counted})
    tally = Tally(searched=5, cases=6, deaths=1, shrinking=True, margins={"T1": 0.5}, phases={"judge": 2.0})
    assert read_log(old)[1] == Progress(at=1.0, backend="fake", tally=tally)


def test_a_log_of_version_2_goes_on_in_this_one(tmp_path: Path) -> None:
    now = SliceStarted(at=1.0, job=0, backend="fake", kind=SliceKind.KEPT, seed=1, examples=9)
    ran = Progress(at=1.0, backend="fake", tally=Tally(cases=3))
    written = (json.loads(msgspec.json.encode(event)) for event in (now, ran))
    mixed = log_of(tmp_path / "mixed", STARTED | {"index": -1}, *written)
    assert read_log(mixed)[1:] == [now, now, ran]


@pytest.mark.parametrize(("version", "number"), [(2, -3), (2, 1.5), (2, None), (3, -1), (3, -2)])
def test_a_number_that_its_version_has_not_is_refused(tmp_path: Path, version: int, number: object) -> None:
    log = log_of(tmp_path / "log", STARTED | {"index": number}, version=version)
    with pytest.raises(LogError, match=r"line 2: .*The log is damaged"):
        read_log(log)


@pytest.mark.parametrize("version", [1, 4])
def test_other_versions_are_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(LogError, match=rf"\(log version {version}, this one reads 2 to 3\)"):
        read_log(log_of(tmp_path / "log", version=version))
