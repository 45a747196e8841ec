"""`attnfuzz fuzz --resume`: from wherever, whatever is missing, and after the campaign's own end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_events import checked, filed, finished, kept, searched, started
from command_line import Attnfuzz
from fake_search import decode
from msgspec.structs import replace
from refusals import refused

from attnfuzz.harness.campaign.events import CampaignStarted, Event
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.knowledge import OUT_OF_TIME
from attnfuzz.harness.campaign.log import EventLog, read_log
from attnfuzz.harness.findings.state import State

BACKEND = "torch_sdpa"
CASE = replace(decode(5), backend=BACKEND)
BEGUN = replace(started(BACKEND), seconds=1.0)
TORN = b'{"event":"Progr'


def begun(home: Path, *events: Event, head: CampaignStarted = BEGUN) -> Path:
    """The log of a campaign in a home, with these events after its start, and half of another."""
    log = Home(home).log("20300101-000000")
    with EventLog(log) as write:
        for event in (head, *events):
            write(event)
    with log.open("ab") as file:
        file.write(TORN)
    return log


@pytest.mark.parametrize(("event", "code"), [(filed(CASE), 1), (kept(CASE, OUT_OF_TIME), 1), (None, 0)])
def test_a_campaign_that_was_killed_before_its_reports_were_written_has_them_and_its_exit_code_again(
    attnfuzz: Attnfuzz, event: Event | None, code: int
) -> None:
    log = begun(Path("attnfuzz-out"), searched(CASE.backend), *([] if event is None else [event]), finished())
    ran = attnfuzz("fuzz", "--resume", "--home", "attnfuzz-out")
    assert ran.code == code, ran.err
    assert "Campaign 20300101-000000 is finished; its reports are written again." in ran.out
    assert {"report.html", "junit.xml", "summary.md"} <= {path.name for path in log.parent.iterdir()}
    assert "continue with" not in ran.out


@pytest.mark.slow
def test_a_campaign_logs_paths_with_which_it_continues_in_any_folder(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    Path("attnfuzz-ledger.toml").write_text('[[known]]\nbackend = "torch_sdpa"\nkind = "Hang"\nreason = "rare"\n')
    Path("team.py").write_text(
        "from attnfuzz.kernels.libraries import torch_sdpa\n\nMINE = torch_sdpa.SDPA_BACKENDS[0]\n"
    )
    options = ("--backend", BACKEND, "--backend", "team.py:MINE")
    ran = attnfuzz("fuzz", *options, "--examples", "1", "--seed", "1")
    assert ran.code == 0
    assert "Ledger: entry 1 (Hang in torch_sdpa): no finding matched" in ran.out
    (first, *_) = read_log(next(Path("attnfuzz-out/campaigns").glob("*/events.ndjson")))
    assert isinstance(first, CampaignStarted)
    assert first.ledger == str(tmp_path / "attnfuzz-ledger.toml")
    assert first.folder == str(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ledger": "/gone/ledger.toml"}, ("the ledger /gone/ledger.toml", "--ledger")),
        (
            {"backends": ("team.py:MINE",), "folder": "/home/me/team"},
            ("restore team.py, or continue in /home/me/team",),
        ),
        ({"backends": ("no_such_backend",)}, ("no_such_backend",)),
    ],
    ids="-".join,
)
def test_missing_requirements_are_reported_before_the_log_is_changed(
    attnfuzz: Attnfuzz, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    log = begun(Path("attnfuzz-out"), head=replace(BEGUN, **changes))
    before = log.read_bytes()
    assert before.endswith(TORN)
    refused(attnfuzz("fuzz", "--resume", "--home", "attnfuzz-out"), *words)
    assert log.read_bytes() == before


def test_a_ledger_that_moved_can_be_named(attnfuzz: Attnfuzz, sent: Callable[..., None]) -> None:
    log = begun(Path("attnfuzz-out"), head=replace(BEGUN, ledger="/gone/ledger.toml"))
    Path("here.toml").write_text("")
    sent(checked(CASE, State.FIXED), finished())
    ran = attnfuzz("fuzz", "--resume", "--home", "attnfuzz-out", "--ledger", "here.toml")
    assert ran.code == 0, ran.err
    assert TORN not in log.read_bytes()
