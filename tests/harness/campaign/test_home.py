"""The folder that campaigns live in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnfuzz.harness.campaign.home import LOG_NAME, Home, HomeError


def test_a_campaign_is_named_for_its_time(tmp_path: Path) -> None:
    assert Home(tmp_path).new_id(now=1e9) == "20010909-014640"


def test_campaigns_of_the_same_second_have_names_in_their_order(tmp_path: Path) -> None:
    home = Home(tmp_path)
    names = [home.new_id(now=1e9) for _ in range(12)]
    assert names == sorted(names)
    assert len(set(names)) == 12


def test_a_clock_that_goes_backwards_puts_no_campaign_before_an_earlier_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    names = [home.new_id(now=1e9 - 3600.0 * number) for number in range(4)]
    names.append(home.new_id(now=1e9 + 1))
    assert names == sorted(names)
    assert len(set(names)) == 5


@pytest.mark.parametrize("name", ["old", "zz.old", ".DS_Store"])
def test_other_folders_among_campaigns_do_not_affect_a_new_id(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    home.folder(name).mkdir(parents=True)
    assert home.new_id(now=1e9) == "20010909-014640"


def test_only_campaigns_with_a_log_are_listed_in_their_order(tmp_path: Path) -> None:
    home = Home(tmp_path)
    late, early, without = home.new_id(now=2e9), home.new_id(now=1e9), home.new_id(now=2e9)
    for name in (late, early):
        (home.folder(name) / LOG_NAME).write_text("an event\n")
    assert home.ids() == [late, early]
    assert without not in home.ids()


def test_a_home_is_held_by_one_campaign(tmp_path: Path) -> None:
    process = os.getpid()
    with (
        Home(tmp_path).locked(),
        pytest.raises(HomeError, match=f"in use by another campaign .process {process}."),
        Home(tmp_path).locked(),
    ):
        pass
    with Home(tmp_path).locked():
        pass


@pytest.mark.slow
def test_a_campaign_that_was_killed_holds_its_home_no_longer(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from attnfuzz.harness.campaign.home import Home\n"
        "with Home(Path(sys.argv[1])).locked(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode < 0
    with Home(tmp_path).locked():
        pass


def test_git_ignores_a_new_home_and_an_old_one_is_left_as_it_is(tmp_path: Path) -> None:
    for home in (tmp_path / "new", tmp_path):
        with Home(home).locked():
            pass
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"
    assert not (tmp_path / ".gitignore").exists()


def test_drafts_of_dead_processes_are_removed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    dead, own = (home.folder("20300101-000000") / f".draft-report.html.{pid}" for pid in (1 << 30, os.getpid()))
    dead.parent.mkdir(parents=True)
    for draft in (dead, own):
        draft.write_text("half")
    with home.locked():
        assert list(dead.parent.iterdir()) == [own]


def test_a_campaign_that_was_killed_before_its_first_event_never_began(tmp_path: Path) -> None:
    home = Home(tmp_path)
    begun, killed = home.new_id(1e9), home.new_id(2e9)
    home.log(begun).write_text("an event\n")
    home.log(killed).touch()
    assert home.ids() == [begun]
    assert home.new_id(1.5e9) > killed
