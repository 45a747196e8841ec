"""Real campaigns whose processes are killed at random for minutes: they end, right in every count."""

import contextlib
import os
import random
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from campaign_process import begin, marked_with
from random_kills import children, command_line
from team_backend import NAME as TEAM
from team_backend import write_backend

from attnfuzz.harness.campaign.events import CampaignFinished, SliceStarted
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.search.messages import SliceKind


def jobs_of(campaign: int) -> list[int]:
    return [pid for pid in children(campaign) if "attnfuzz.harness.campaign.job" in command_line(pid)]


def workers_of_job(job: int) -> list[int]:
    """What the job's only child forked; beside workers, it starts a compiler to ask for its version."""
    forked = [pid for nursery in children(job) for pid in children(nursery)]
    return [pid for pid in forked if "attnfuzz.harness" in command_line(pid)]


def jobs_at_work(campaign: int) -> list[int]:
    """Those that have workers: three deaths before the first case would end the campaign, and rightly."""
    return [job for job in jobs_of(campaign) if workers_of_job(job)]


KILLS = 200
KILLS_PER_CAMPAIGN = 25
SECONDS_BETWEEN_KILLS = 0.7
SECONDS_TO_BE_GONE = 5.0
EXAMPLES_OF_EACH = 300
MAIN_SHARE = 0.07
WEIGHTS = {"job": 1, "nursery": 1, "worker": 3}
"""A worker is replaced at once, the others start for seconds, in which there is less to kill."""


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, and not written to


@dataclass(frozen=True)
class Outcome:
    """What has to be the same however often a campaign is killed."""

    code: int
    searched: dict[str, int]
    failures: set[tuple[str, str]]


class Victims:
    """Chooses among the processes of a campaign: the main process, or one of its jobs, nurseries and workers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def strike(self, main: int) -> bool:
        """Kill one with SIGKILL. As long as only the main process runs, it is mostly spared, and False returned."""
        jobs = jobs_at_work(main)
        nurseries = [pid for job in jobs for pid in children(job)]
        others = {"job": jobs, "nursery": nurseries, "worker": [pid for job in jobs for pid in workers_of_job(job)]}
        kind = "main"
        if self.random.random() >= MAIN_SHARE:
            if not jobs:
                return False
            weights = [WEIGHTS[name] if pids else 0 for name, pids in others.items()]
            (kind,) = self.random.choices([*others], weights)
        victim = main if kind == "main" else self.random.choice(others[kind])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.counts[kind] += 1
        return True


def nothing_is_left(mark: str, temporary: Path) -> None:
    """Wait for a while until no process of a campaign runs, and see that it left no file."""
    deadline = time.monotonic() + SECONDS_TO_BE_GONE
    while (left := marked_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert list(temporary.iterdir()) == []
    assert not list(SHARED_MEMORY.glob("*attnfuzz*"))


def outcome_of(folder: Path, code: int) -> Outcome:
    """What came of the campaign in `folder`, after what holds of every log."""
    home = Home(folder / "attnfuzz-out")
    (name,) = home.ids()
    events = read_log(home.log(name))
    standing = Standing.of(events)
    assert isinstance(events[-1], CampaignFinished)
    assert [event.at for event in events] == sorted(event.at for event in events)
    names = [event.name for event in standing.filed]
    assert len(set(names)) == len(names)
    assert {path.name for path in home.findings.glob("*")} == set(names)
    assert standing.unconfirmed == []
    assert not list(home.path.rglob(".draft-*"))
    started = Counter(
        (event.backend, event.index)
        for event in events
        if isinstance(event, SliceStarted)
        if event.kind is SliceKind.DRAWN
    )
    assert set(started.values()) == {1}, "no slice is drawn twice"
    searched = {backend: score.tally.searched for backend, score in standing.scores.items()}
    return Outcome(code, searched, {(each.fingerprint.kind, each.fingerprint.place) for each in standing.filed})


@pytest.mark.long
@pytest.mark.usefixtures("started")
def test_campaigns_that_are_killed_200_times_end_as_if_they_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    victims, campaigns, resumed = Victims(seed=3), 0, 0

    def campaign(folder: Path, *, wrong: bool, kills: int) -> Outcome:
        nonlocal resumed
        folder.mkdir()
        write_backend(folder, wrong=wrong)
        options: tuple[str, ...] = ("--backend", TEAM, "--backend", "torch_sdpa", "--jobs", "2", "--seed", "5")
        options += ("--examples", str(EXAMPLES_OF_EACH))
        mark = uuid.uuid4().hex
        while True:
            with begin(folder, *options, mark=mark) as running_campaign:
                process = running_campaign.process
                while process.poll() is None and kills:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(victims.random.expovariate(1 / SECONDS_BETWEEN_KILLS))
                        break
                    victims.strike(process.pid)
                    kills -= 1
                output, _ = process.communicate()
            nothing_is_left(mark, temporary)
            if process.returncode in {0, 1}:
                return outcome_of(folder, process.returncode)
            # Three deaths of a job before its first case end a campaign, as they should: it can be gone on with.
            assert process.returncode in {-signal.SIGKILL, 2}, output
            assert process.returncode == -signal.SIGKILL or "The harness itself failed" in output, output
            resumed += 1
            options = ("--resume", "--home", "attnfuzz-out") if Home(folder / "attnfuzz-out").ids() else options

    whole = {wrong: campaign(tmp_path / f"whole-{wrong}", wrong=wrong, kills=0) for wrong in (True, False)}
    assert (whole[True].code, whole[False].code) == (1, 0)
    while victims.counts.total() < KILLS:
        wrong = campaigns % 4 != 3
        campaigns += 1
        killed = campaign(tmp_path / str(campaigns), wrong=wrong, kills=KILLS_PER_CAMPAIGN)
        assert killed == whole[wrong]
    record_property("killed", dict(victims.counts))
    record_property("resumed", f"{resumed} times in {campaigns} campaigns")
