"""Campaigns under compute-sanitizer, with results in place of its runs."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_archive import archive

from attnfuzz.harness.campaign import sanitizing
from attnfuzz.harness.campaign.events import CoverageGrew, Event, FindingFiled, ScriptMade, Trouble, UnconfirmedKept
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.sanitizing import SanitizedCampaign, chosen_for_pairs, is_small, small_cases
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.family import family_of
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.sandbox.check import render_failure
from attnfuzz.harness.sanitizer.reports import parse
from attnfuzz.harness.sanitizer.run import NotSanitized, Sanitized
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.reference.any_case import AnyCase

BACKEND = "torch_sdpa"
RACE = """\
========= Error: Race reported between Write access at sum_kernel(int *, int *)+0x90 in block.cu:41
=========     and Read access at sum_kernel(int *, int *)+0x100 in block.cu:51 [508 hazards]
""".splitlines()
BARRIER = """\
========= Barrier error detected. Divergent thread(s) in warp.
=========     at sum_kernel(int *)+0xa0
""".splitlines()


class Runs:
    """Reports of a tool on each case, by tool: in the first run, and in the second."""

    def __init__(self, first: dict[SanitizerTool, list[str]], second: dict[SanitizerTool, list[str]]) -> None:
        self.lines = {1: first, 2: second}
        self.times: dict[SanitizerTool, int] = {}
        self.refuses: set[SanitizerTool] = set()

    def __call__(
        self, tool: SanitizerTool, cases: Sequence[AnyCase], *, seconds: float, contract: str, stop: threading.Event
    ) -> Sanitized:
        del contract, stop
        assert seconds > 0
        if tool in self.refuses:
            raise NotSanitized("compute-sanitizer is not on PATH")
        self.times[tool] = self.times.get(tool, 0) + 1
        reports = tuple(parse(self.lines[self.times[tool]].get(tool, [])).reports)
        return Sanitized(len(cases), (reports,) * len(cases), {}, "", 1.0)


@pytest.fixture(autouse=True)
def _few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizing, "_EXAMPLES", 20)


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[AnyCase]:
    """Choose a few cases, once for both runs."""
    drawn = small_cases(BACKEND, seed=1)[:3]
    monkeypatch.setattr(sanitizing, "small_cases", lambda *_: drawn)
    return drawn


def happenings(runs: Runs, home: Path) -> list[Event]:
    campaign = SanitizedCampaign(
        Plan(backends=(BACKEND,), out=home, seconds=60, seed=1, sanitize=True),
        campaign="1",
        archive=archive(home),
        ledger=Ledger(),
        environment={},
        stop=threading.Event(),
        render=render_failure,
        run=runs,
    )
    return list(campaign.events())


def test_chosen_cases_are_small_and_cover_more_pairs_than_the_first_ones_drawn() -> None:
    chosen = small_cases(BACKEND, seed=1)
    assert 1 < len(chosen) <= 12
    assert all(map(is_small, chosen))
    bits = [family_of(case).pair_bits(case) for case in chosen]
    assert bits[0].bit_count() == max(each.bit_count() for each in bits)
    assert chosen_for_pairs([chosen[0], chosen[0]], 5) == [chosen[0]], "a case without new pairs is left out"


def test_a_report_that_comes_back_is_a_finding_and_any_other_is_unconfirmed(
    cases: list[AnyCase], tmp_path: Path
) -> None:
    both = {SanitizerTool.RACECHECK: RACE, SanitizerTool.SYNCCHECK: BARRIER}
    events = happenings(Runs(both, {SanitizerTool.RACECHECK: RACE}), tmp_path)
    (filed,) = (event for event in events if isinstance(event, FindingFiled))
    (kept,) = (event for event in events if isinstance(event, UnconfirmedKept))
    assert filed.observation.kind is Kind.RACE
    assert filed.fingerprint.place == "shared memory, write and read at block.cu:41, block.cu:51"
    assert filed.case == cases[0]
    assert kept.observation.kind is Kind.BARRIER_MISUSED
    assert any(isinstance(event, ScriptMade) and not event.kept for event in events)
    assert any(isinstance(event, CoverageGrew) and event.pairs for event in events)
    standing = Standing.of(events)
    assert (standing.cases, len(standing.findings), standing.clean) == (len(cases), 1, False)


def test_a_tool_that_is_refused_is_one_line(cases: list[AnyCase], tmp_path: Path) -> None:
    runs = Runs({}, {})
    runs.refuses = {SanitizerTool.INITCHECK}
    events = happenings(runs, tmp_path)
    assert [event.text for event in events if isinstance(event, Trouble)] == ["compute-sanitizer is not on PATH"]
    assert Standing.of(events).cases == len(cases)
    assert Standing.of(events).clean


def test_findings_of_a_tool_are_not_run_again_without_it(cases: list[AnyCase], tmp_path: Path) -> None:
    del cases
    race = {SanitizerTool.RACECHECK: RACE}
    happenings(Runs(race, race), tmp_path)
    assert archive(tmp_path, campaign="2").past([BACKEND]) == []
