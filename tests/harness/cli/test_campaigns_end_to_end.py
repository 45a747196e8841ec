"""Whole campaigns, from the command line to the reports: killed and resumed, and night after night."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from campaign_process import begin
from team_backend import NAME as MINE
from team_backend import write_backend

from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CampaignResumed,
    FindingChecked,
    FindingFiled,
)
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.sandbox.check import shared_runner

pytestmark = pytest.mark.slow

Attnfuzz = Callable[..., Any]
HOME = Home(Path("attnfuzz-out"))


@pytest.fixture(autouse=True)
def own_workers() -> Iterator[None]:
    """Scripts are made by workers of this process: here, not where another test began them."""
    _end_workers()
    yield
    _end_workers()


def _end_workers() -> None:
    if shared_runner.cache_info().currsize:
        shared_runner().close()
        shared_runner.cache_clear()


# A minute; test_killed_campaign.py kills campaigns at random moments, too.
@pytest.mark.long
def test_a_campaign_that_is_killed_twice_loses_nothing_and_counts_nothing_twice(
    attnfuzz: Attnfuzz,
) -> None:
    write_backend(Path(), wrong=True)
    here = Path.cwd()
    budget = ("--backend", MINE, "--backend", "torch_sdpa", "--examples", "60", "--jobs", "2", "--seed", "5")
    with begin(here, *budget) as campaign:
        campaign.wait_for("SuspectSeen")
        campaign.process.send_signal(signal.SIGKILL)
    before = campaign.log().count('"Progress"')
    with begin(here, "--resume", "--home", "attnfuzz-out") as campaign:
        campaign.wait_for("Progress", times=before + 1)
        campaign.process.send_signal(signal.SIGKILL)
    ran = attnfuzz("fuzz", "--resume", "--home", "attnfuzz-out")
    assert ran.code == 1, ran.out
    (name,) = HOME.ids()
    events = read_log(HOME.log(name))
    assert Counter(type(event) for event in events)[CampaignResumed] == 2
    assert isinstance(events[-1], CampaignFinished)
    assert [event.at for event in events] == sorted(event.at for event in events)
    standing = Standing.of(events)
    assert {backend: score.tally.searched for backend, score in standing.scores.items()} == {MINE: 60, "torch_sdpa": 60}
    filed = [event.name for event in standing.filed]
    assert filed
    assert len(set(filed)) == len(filed)
    assert {path.name for path in HOME.findings.iterdir()} == set(filed)
    assert all(event.case.backend == MINE for event in standing.filed)


def test_a_bug_is_new_then_fixed_then_back(attnfuzz: Attnfuzz) -> None:
    def night(*, wrong: bool) -> tuple[int, str, set[tuple[str, State]]]:
        write_backend(Path(), wrong=wrong)
        ran = attnfuzz("fuzz", "--backend", MINE, "--examples", "12", "--seed", "5")
        sent = [
            event for event in read_log(HOME.log(HOME.ids()[-1])) if isinstance(event, FindingFiled | FindingChecked)
        ]
        return ran.code, ran.out, {(event.name, event.state) for event in sent}

    code, out, first = night(wrong=True)
    assert code == 1
    assert {state for _, state in first} == {State.NEW}
    names = {name for name, _ in first}
    assert f"{len(names)} new finding" in out

    code, out, second = night(wrong=False)
    assert code == 0
    assert second == {(name, State.FIXED) for name in names}
    assert f"No findings, {len(names)} fixed" in out

    code, out, third = night(wrong=True)
    assert code == 1
    assert third == {(name, State.RETURNED) for name in names}
    assert f"{len(names)} returned" in out
