"""Campaigns on planted regressions: a finding counts if it passes on the unchanged modules."""

import runpy
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from campaign_events import filed
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.cli.answers import ReplayAnswer

campaigns: Any = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "cuda_campaigns.py"))
Origin, Replays, watch = campaigns["Origin"], campaigns["Replays"], campaigns["watch"]

NEVER = float("inf")


def finding(name: str, known: str | None = None) -> FindingFiled:
    return filed(decode(5), name, known=known)


def answer(*, failed: int, conclusive: bool = True) -> ReplayAnswer:
    return ReplayAnswer(
        path="", backend="", fails=failed > 0, runs=3, failed=failed, conclusive=conclusive, failures=()
    )


class Campaign:
    """A campaign that files its findings one by one as it is polled, and ends after them or at a signal."""

    def __init__(self, folder: Path, filing: Sequence[FindingFiled]) -> None:
        self._log = EventLog(folder / "campaigns" / "one" / "events.ndjson")
        self._left = list(filing)
        self.signals: list[int] = []

    def poll(self) -> int | None:
        if self.signals or not self._left:
            self._log.close()
            return 0
        self._log(self._left.pop(0))
        return None

    def send_signal(self, sig: int, /) -> None:
        self.signals.append(sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll without pauses."""
    monkeypatch.setitem(watch.__globals__, "_POLL", 0.01)


def by_name(**origins: Any) -> Callable[[FindingFiled], Any]:
    return lambda found: origins[found.name]


@pytest.mark.parametrize(
    ("replayed", "origin"),
    [
        (answer(failed=0), Origin.PLANT),
        (answer(failed=1), Origin.UNCHANGED),
        (answer(failed=1, conclusive=False), Origin.UNCHANGED),
        (answer(failed=0, conclusive=False), Origin.UNDECIDED),
        (None, Origin.UNDECIDED),
    ],
)
def test_a_finding_that_passes_unchanged_is_the_plants_unless_it_is_flaky(replayed: ReplayAnswer, origin: Any) -> None:
    assert campaigns["origin_of"](replayed) is origin


@pytest.mark.usefixtures("at_once")
def test_a_campaign_goes_on_after_failures_of_the_unchanged_kernel(tmp_path: Path) -> None:
    one = Campaign(tmp_path, [finding("listed", known="a bug"), finding("old"), finding("rare"), finding("new")])
    replays = Replays(by_name(old=Origin.UNCHANGED, rare=Origin.UNDECIDED, new=Origin.PLANT))
    watch(one, tmp_path, replays, deadline=NEVER)
    assert replays.first.name == "new"
    assert [replays.count(each) for each in Origin] == [1, 1, 1]


@pytest.mark.usefixtures("at_once")
def test_a_campaign_without_a_finding_of_the_plant_uses_all_its_time(tmp_path: Path) -> None:
    one = Campaign(tmp_path, [finding("old"), finding("older")])
    replays = Replays(by_name(old=Origin.UNCHANGED, older=Origin.UNCHANGED))
    watch(one, tmp_path, replays, deadline=NEVER)
    assert not one.signals
    assert replays.first is None
    assert replays.count(Origin.UNCHANGED) == 2


@pytest.mark.usefixtures("at_once")
def test_a_campaign_ends_at_the_first_finding_of_the_plant(tmp_path: Path) -> None:
    one = Campaign(tmp_path, [finding("new"), *(finding(f"later-{number}") for number in range(100))])
    replayed: list[str] = []

    def replay(found: FindingFiled) -> Any:
        replayed.append(found.name)
        return Origin.PLANT

    replays = Replays(replay)
    watch(one, tmp_path, replays, deadline=NEVER)
    assert one.signals == [signal.SIGINT]
    assert replays.first.name == "new"
    assert replayed[0] == "new"
    assert len(replayed) < 100


@pytest.mark.usefixtures("at_once")
def test_a_campaign_over_its_time_is_interrupted(tmp_path: Path) -> None:
    one = Campaign(tmp_path, [finding("old"), finding("older")])
    watch(one, tmp_path, Replays(by_name(old=Origin.UNCHANGED, older=Origin.UNCHANGED)), deadline=0.0)
    assert one.signals == [signal.SIGINT]


def test_half_a_line_of_a_log_is_no_finding(tmp_path: Path) -> None:
    one = Campaign(tmp_path, [finding("first"), replace(finding("second"), report="x" * 100)])
    one.poll()
    one.poll()
    log = tmp_path / "campaigns" / "one" / "events.ndjson"
    log.write_bytes(log.read_bytes()[:-50])
    assert [each.name for each in campaigns["findings"](tmp_path)] == ["first"]


def test_results_of_an_earlier_version_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"all": [{"plant": "a", "backend": "b", "seconds": 3.0}]}')
    with pytest.raises(campaigns["BadResults"], match=r"^[^\n]*results.json is not of this version[^\n]*$"):
        campaigns["Campaigns"](tmp_path, seconds=1.0, jobs=1, pretended=None, gpus=None, time_left=lambda: 1.0)
