"""Campaigns whose surroundings fail: the disk, another campaign, a log of 100 MB. One line each; nothing is lost."""

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from campaign_events import finished, started
from campaign_process import CampaignProcess, begin
from team_backend import NAME as TEAM
from team_backend import write_backend

from attnfuzz.harness.campaign.events import Progress
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.search.messages import Tally

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("started")]

EXAMPLES = 300
OPTIONS = ("--backend", TEAM, "--examples", str(EXAMPLES), "--seed", "5")
MOST_SECONDS = 180.0
GIB = 1 << 30


def mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The home of campaigns that are begun in the folder above it, on a file system of 2 MB of its own."""
    write_backend(tmp_path, wrong=True)
    home = tmp_path / "attnfuzz-out"
    home.mkdir()
    if not mount(home, "size=2m"):
        pytest.skip("nothing can be mounted here")
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)  # noqa: S607


def ends(campaign: CampaignProcess) -> tuple[int, str]:
    """How a campaign ends, and all that it printed."""
    output, _ = campaign.process.communicate(timeout=MOST_SECONDS)
    assert "Traceback" not in output, output
    return campaign.process.returncode, output


def refused(folder: Path, *options: str) -> str:
    """The one line with which a campaign is refused or given up."""
    with begin(folder, *options) as campaign:
        code, output = ends(campaign)
    assert code == 2, output
    (line,) = (line for line in output.splitlines() if line.startswith("Error: "))
    return line


def whole(home: Path) -> Standing:
    """Where the only campaign of a home stands, all of whose examples were searched."""
    (name,) = Home(home).ids()
    standing = Standing.of(read_log(Home(home).log(name)))
    assert standing.scores[TEAM].tally.searched == EXAMPLES
    assert {path.name for path in Home(home).findings.iterdir()} == {event.name for event in standing.filed}
    return standing


def test_a_disk_that_fills_up_ends_a_campaign_with_a_line_and_loses_nothing(disk: Path) -> None:
    (disk / "ballast").write_bytes(bytes((2 << 20) - (48 << 10)))
    assert "No space left on device" in (line := refused(disk.parent, *OPTIONS))
    assert (
        "Free some space, then continue with: attnfuzz fuzz --resume --home attnfuzz-out" in line
        or "write the report with" in line
    )
    (disk / "ballast").unlink()
    with begin(disk.parent, "--resume", "--home", "attnfuzz-out") as campaign:
        code, output = ends(campaign)
    assert code == 1, output
    assert len(whole(disk).filed) >= 1


def test_a_campaign_fits_onto_2_megabytes(disk: Path) -> None:
    with begin(disk.parent, *OPTIONS) as campaign:
        code, output = ends(campaign)
    assert code == 1, output
    whole(disk)


def test_a_disk_that_is_full_before_anything_is_written_is_named(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "ballast").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    assert "No space left on device" in refused(disk.parent, *OPTIONS)


def test_a_disk_that_can_only_be_read_is_named(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)  # noqa: S607
    assert "Read-only file system" in refused(disk.parent, *OPTIONS)


def test_two_campaigns_in_one_home_are_one_too_many(tmp_path: Path) -> None:
    write_backend(tmp_path, wrong=True)
    with begin(tmp_path, *OPTIONS) as first:
        first.wait_for("CampaignStarted")
        assert "is in use by another campaign (process " in refused(tmp_path, *OPTIONS)
        assert "is in use by another campaign (process " in refused(tmp_path, "--resume", "--home", "attnfuzz-out")
        code, output = ends(first)
    assert code == 1, output
    whole(tmp_path / "attnfuzz-out")


def test_a_log_of_100_megabytes_is_read_in_bounded_time_and_memory(tmp_path: Path) -> None:
    log = Home(tmp_path).log("20300101-000000")
    log.parent.mkdir(parents=True)
    margins, phases = {"T1": 0.5, "T2": 0.3}, {"draw": 0.1, "kernels": 0.2, "judge": 0.3}
    with log.open("wb") as file:
        file.write(msgspec.json.encode(started("torch_sdpa")) + b"\n")
        at = 0.0
        while file.tell() < 100_000_000:
            at += 0.01
            event = Progress(
                at=at, backend="torch_sdpa", tally=Tally(searched=5, cases=6, deaths=0, margins=margins, phases=phases)
            )
            file.write(msgspec.json.encode(event) + b"\n")
        file.write(msgspec.json.encode(finished(at)) + b"\n")
    command = [sys.executable, "-m", "attnfuzz.harness.cli.main", "report", "--home", str(tmp_path)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=MOST_SECONDS)
    assert ran.stdout.startswith("No findings in ")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10 < 2 * GIB
