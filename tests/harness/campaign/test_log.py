"""The event log: what it holds after kills and full disks, and what it says of files that are none."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import campaign_events
import msgspec
import pytest
from campaign_events import finished
from damage import fill_the_disk
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import (
    LOG_VERSION,
    CampaignResumed,
    CampaignStarted,
    Event,
    Progress,
    SliceFinished,
    SliceStarted,
    Trouble,
)
from attnfuzz.harness.campaign.log import EventLog, LogError, read_log, read_torn_log
from attnfuzz.harness.files import lines
from attnfuzz.harness.search.messages import Tally


def started() -> CampaignStarted:
    return replace(campaign_events.started("fake", torch="2"), examples=9, seconds=None)


def progress(at: float) -> Progress:
    return Progress(at=at, backend="fake", tally=Tally(searched=5, cases=6, deaths=1, margins={"T4": 0.5}))


def written(path: Path, *events: Event) -> Path:
    with EventLog(path) as log:
        for event in events:
            log(event)
    return path


def test_written_events_are_read_back(tmp_path: Path) -> None:
    events = [started(), progress(1.0), Trouble(at=1.5, text="the corpus is gone"), finished(2.0)]
    path = written(tmp_path / "new" / "events.ndjson", *events)
    assert read_log(path) == events
    assert len(path.read_text().splitlines()) == 4


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    path = written(tmp_path / "events.ndjson", started(), progress(1.0))
    written(path, finished(2.0))
    assert read_log(path) == [started(), progress(1.0), finished(2.0)]


@pytest.mark.parametrize("kept", range(1, 60, 7))
def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path / "events.ndjson", started(), progress(1.0), finished(2.0))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:kept])
    assert read_log(path) == [started(), progress(1.0)]
    assert read_torn_log(path) == ([started(), progress(1.0)], kept)
    with EventLog(path, torn_bytes=kept) as log:
        log(finished(3.0))
    assert read_log(path) == [started(), progress(1.0), finished(3.0)]


def test_a_log_that_is_whole_is_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "events.ndjson", started(), finished(2.0))
    before = path.read_bytes()
    assert read_torn_log(path)[1] == 0
    EventLog(path).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no event"),
        (b'{"event": "CampaignSta', "holds no event"),
        (b"hello\n", "is not an event log"),
        (b'{"event":"CampaignFinished","log_version":3}\n', "its first line is not a CampaignStarted"),
        (b'{"event":"CampaignStarted","log_version":1}\n', f"log version 1, this one reads {LOG_VERSION}"),
        (b'{"event":"CampaignStarted","log_version":%d}\n' % (LOG_VERSION + 1), f"this one reads {LOG_VERSION}"),
    ],
)
def test_a_file_that_is_no_log_is_reported_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(content)
    with pytest.raises(LogError, match=says) as error:
        read_log(path)
    assert "\n" not in str(error.value)


def test_a_line_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "events.ndjson", started(), progress(1.0), finished(2.0))
    path.write_bytes(path.read_bytes().replace(b'"searched":5', b'"searched":"x"'))
    with pytest.raises(LogError, match=r"line 2: .*tally\.searched"):
        read_log(path)


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.ndjson"
    with EventLog(path) as log:
        log(started())
        fill_the_disk(monkeypatch, room=20)
        with pytest.raises(OSError, match="No space"):
            log(Trouble(at=1.0, text="x" * 30))
        monkeypatch.undo()
        log(finished(2.0))
    assert read_log(path) == [started(), finished(2.0)]


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_the_whole_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    with EventLog(tmp_path / "events.ndjson") as log:
        monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:50]))
        log(started())
        monkeypatch.undo()
    assert read_log(tmp_path / "events.ndjson") == [started()]


def test_a_failing_fsync_fails_the_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lines, "SECONDS_PER_SYNC", 0.0)
    with EventLog(tmp_path / "events.ndjson") as log:
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="Input/output"):
            log(progress(1.0))
        monkeypatch.undo()


def test_findings_are_on_the_disk_at_once_and_the_rest_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with EventLog(tmp_path / "events.ndjson") as log:
        synced.clear()
        log(started())
        assert len(synced) == 1
        log(progress(0.1))
        assert len(synced) == 1
        monkeypatch.setattr(lines, "SECONDS_PER_SYNC", 0.0)
        log(progress(1.0))
        assert len(synced) == 2


@pytest.mark.slow
def test_a_process_that_is_killed_has_lost_nothing_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    written(path, started())
    program = tmp_path / "writing.py"
    program.write_text(
        "import itertools, sys; from pathlib import Path\n"
        "from attnfuzz.harness.campaign.events import Progress\n"
        "from attnfuzz.harness.campaign.log import EventLog\n"
        "from attnfuzz.harness.search.messages import Tally\n"
        "log = EventLog(Path(sys.argv[1]))\n"
        "for number in itertools.count():\n"
        "    log(Progress(at=float(number), backend='fake', tally=Tally(searched=1, cases=1)))\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, program, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sent = [process.stdout.readline() for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        sent += process.stdout.read().splitlines()
    events, _ = read_torn_log(path)
    assert events[-1].at >= int(sent[-1])
    assert [event.at for event in events[1:]] == [float(number) for number in range(len(events) - 1)]


def log_with(path: Path, line: int, field: str, value: object) -> Path:
    """A log in which one field of one line has another value."""
    slice_of = {"backend": "fake", "index": 0, "seed": 1}
    lines: list[dict[str, object]] = [
        msgspec.json.decode(msgspec.json.encode(event))
        for event in (
            started(),
            progress(1.0),
            SliceStarted(at=1.0, job=0, examples=1, **slice_of),  # type: ignore[arg-type]
            SliceFinished(at=2.0, examples=1, cases=1, deaths=0, seconds=1.0, unsupported={}, **slice_of),  # type: ignore[arg-type]
            CampaignResumed(at=3.0, time=1e9, environment={}, jobs=1, torn_bytes=0),
        )
    ]
    lines[line - 1][field] = value
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
    return path


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (1, "jobs", 1_000_000),
        (1, "jobs", 0),
        (1, "jobs", 10**30),
        (1, "seed", -1),
        (1, "seed", 1 << 64),
        (1, "examples", 0),
        (1, "examples", 1 << 60),
        (1, "examples", None),
        (1, "seconds", 1e300),
        (1, "seconds", -1.0),
        (1, "time", 1e300),
        (1, "time", -1.0),
        (1, "at", -1.0),
        (1, "at", 1e300),
        (1, "alpha", "x"),
        (1, "alpha", 0.0),
        (1, "alpha", 1.0),
        (1, "alpha", 1e-320),
        (1, "alpha", 1e999),
        (1, "backends", []),
        (1, "backends", ["fake"] * 1001),
        (1, "backends", ["fake", "x" * 5000]),
        (1, "backends", ["other"]),
        (1, "guard", "top"),
        (1, "contract", "lax"),
        (1, "contract", "declared\n"),
        (1, "ledger", ""),
        (2, "at", -1.0),
        (2, "at", 1e300),
        (2, "at", float("nan")),
        (2, "tally", {"type": "Tally", "searched": -5}),
        (2, "tally", {"type": "Tally", "cases": 1 << 60}),
        (2, "tally", {"type": "Tally", "phases": {"judge": 1e300}}),
        (2, "backend", "other"),
        (3, "index", -1),
        (3, "index", None),
        (3, "kind", "kept"),
        (3, "kind", "any"),
        (3, "index", 1 << 60),
        (3, "job", 256),
        (3, "at", 0.5),
        (4, "seconds", 1e300),
        (4, "unsupported", {"x": -1}),
        (5, "jobs", 257),
        (5, "torn_bytes", -1),
    ],
)
def test_a_field_that_steers_a_campaign_has_bounds(tmp_path: Path, line: int, field: str, value: object) -> None:
    path = tmp_path / "events.ndjson"
    assert len(read_log(log_with(path, 1, "seed", 3))) == 5
    log_with(path, line, field, value)
    with pytest.raises(LogError, match=r"line \d+: .*The log is damaged|not an event log") as error:
        read_log(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_campaign_that_starts_twice_is_no_log(tmp_path: Path) -> None:
    path = written(tmp_path / "events.ndjson", started(), started())
    with pytest.raises(LogError, match="line 2: the campaign starts a second time"):
        read_log(path)
