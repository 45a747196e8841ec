"""A real campaign whose workers and jobs are killed at random for minutes: it ends, right in every count."""

import subprocess
import sys
from pathlib import Path

import pytest
from random_kills import Killer, RandomKills, children, command_line

from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    FindingFiled,
    JobRestarted,
    Progress,
    SliceFinished,
    SliceStarted,
    SuspectSeen,
)
from attnfuzz.harness.campaign.log import read_log

EXAMPLES = 6000
SECONDS_BETWEEN_WORKERS = 3.0
SECONDS_BETWEEN_JOBS = 20.0


def jobs_of(campaign: int) -> list[int]:
    return [pid for pid in children(campaign) if "attnfuzz.harness.campaign.job" in command_line(pid)]


def workers_of_job(job: int) -> list[int]:
    """What the job's only child forked; beside workers, it starts a compiler to ask for its version."""
    forked = [pid for nursery in children(job) for pid in children(nursery)]
    return [pid for pid in forked if "attnfuzz.harness.workers.nursery" in command_line(pid)]


def workers_of(campaign: int) -> list[int]:
    return [worker for job in jobs_of(campaign) for worker in workers_of_job(job)]


def jobs_at_work(campaign: int) -> list[int]:
    """Those that have workers: three deaths before the first case would end the campaign, and rightly."""
    return [job for job in jobs_of(campaign) if workers_of_job(job)]


@pytest.mark.long
def test_kills_for_minutes_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    options = ("--backend", "trtllm_mha", "--examples", str(EXAMPLES), "--jobs", "2", "--seed", "1")
    command = [sys.executable, "-m", "attnfuzz.harness.cli.main", "fuzz", *options, "--out", str(tmp_path / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        workers = Killer(lambda: workers_of(process.pid))
        jobs = Killer(lambda: jobs_at_work(process.pid), seed=2)
        with (
            RandomKills(workers, seconds=SECONDS_BETWEEN_WORKERS),
            RandomKills(jobs, seconds=SECONDS_BETWEEN_JOBS),
        ):
            output, _ = process.communicate()
    assert process.returncode == 0, output.decode()
    (log,) = (tmp_path / "home" / "campaigns").glob("*/events.ndjson")
    events = read_log(log)
    restarts = [event for event in events if isinstance(event, JobRestarted)]
    assert workers.count > 10
    assert jobs.count == len(restarts) > 1
    # Each example of the budget was drawn, and none was drawn for one that a killed job had told of.
    assert sum(event.searched for event in events if isinstance(event, Progress)) == EXAMPLES
    assert not [event for event in events if isinstance(event, SuspectSeen | FindingFiled)]
    started = [event.index for event in events if isinstance(event, SliceStarted) if event.index >= 0]
    finished = [event for event in events if isinstance(event, SliceFinished) if event.index >= 0]
    assert started == list(range(len(started)))
    assert sorted(event.index for event in finished) == started
    assert sum(event.examples for event in finished) == EXAMPLES
    assert isinstance(events[-1], CampaignFinished)
    assert not events[-1].interrupted
