"""The event log."""

import contextlib
import json
from pathlib import Path

from attnfuzz.harness.campaign.events import LOG_VERSION, CampaignFinished, CampaignStarted, Progress
from attnfuzz.harness.campaign.log import EventLog


def started() -> CampaignStarted:
    return CampaignStarted(
        at=0.0, attnfuzz="1", backends=("fake",), examples=9, seconds=None, seed=3, jobs=2, contract="declared"
    )


def test_the_log_has_one_json_object_per_event_and_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.ndjson"
    with contextlib.closing(EventLog(path)) as log:
        log(started())
        log(Progress(at=1.0, backend="fake", cases=5, deaths=0, shrinking=False))
        log(CampaignFinished(at=2.0, interrupted=False))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["event"] for event in events] == ["CampaignStarted", "CampaignFinished"]
    assert events[0]["log_version"] == LOG_VERSION


def test_a_second_campaign_appends(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    for _ in range(2):
        with contextlib.closing(EventLog(path)) as log:
            log(started())
    assert len(path.read_text().splitlines()) == 2
