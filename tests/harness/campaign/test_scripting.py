"""Scripts that no job has made: each finding has one in the end, or a reason why it has none."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from campaign_events import filed
from fake_campaign import ScriptedJobs, begin, of, plan
from fake_search import FakeJobs, FakeJudge, decode, fails_on_long, handed_over, observed
from msgspec.structs import replace

from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.events import (
    Event,
    FindingFiled,
    FindingMinimized,
    JobFailed,
    ScriptMade,
    SliceFinished,
    SliceStarted,
)
from attnfuzz.harness.campaign.jobs import JobEnded
from attnfuzz.harness.campaign.plan import Limits, Plan
from attnfuzz.harness.campaign.scripting import JOB_KILLED, NOT_MADE, SECONDS_TO_HAND_OVER, Scripting
from attnfuzz.harness.search.messages import AnyMessage, Caught, HandedOver, SliceDone, SliceKind, Suspect, Tally
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint

ONE, OTHER = (filed(decode(length), name) for length, name in ((7, "one"), (8, "other")))
DONE = SliceDone(tally=Tally(), stopped_early=False, seconds=1.0, unsupported={})
FOUND: tuple[AnyMessage, ...] = (
    Suspect(fingerprint=Fingerprint.of("fake", observed()), case=decode(7), observation=observed()),
    Caught(
        fingerprint=Fingerprint.of("fake", observed()),
        first=decode(7),
        case=decode(7),
        observation=observed(),
        verdict=Verdict(observations=(observed(),)),
    ),
)


def scripting(events: Sequence[Event]) -> Scripting:
    """The scripts that wait after these events."""
    waiting = Scripting(seed=1, jobs=2)
    for event in events:
        waiting(event)
    return waiting


@pytest.mark.parametrize(
    ("events", "waiting"),
    [
        ([ONE, OTHER], ("one", "other")),
        ([ONE, OTHER, ScriptMade(at=1.0, name="one", kept=True)], ("other",)),
        ([ONE, ScriptMade(at=1.0, name="one", kept=False, obstacle="no source")], ()),
        ([ONE, ScriptMade(at=1.0, name="one", kept=False, obstacle=NOT_MADE)], ("one",)),
        (
            [ONE, ScriptMade(at=1.0, name="one", kept=True), FindingMinimized(at=2.0, name="one", finding=OTHER)],
            ("other",),
        ),
    ],
)
def test_a_finding_waits_until_its_script_was_tried(events: list[Event], waiting: tuple[str, ...]) -> None:
    assert scripting(events).waiting == waiting


def test_new_causes_come_before_symptoms_and_known_ones() -> None:
    symptom, known = (replace(ONE, name=name) for name in ("symptom", "known"))
    waiting = scripting([replace(known, known="why"), replace(symptom, cause="one"), ONE])
    order: list[str] = []
    while (run := waiting.next(10.0, 40.0, searched=True)) is not None:
        order.extend(run.unscripted.values())
        waiting.making[len(order)].update(run.unscripted)
        assert run.task.scripted is not None
        assert (run.task.kind, run.task.seconds) == (SliceKind.SCRIPTED, 30.0 - SECONDS_TO_HAND_OVER)
    assert order == ["one", "symptom", "known"]


def test_until_the_search_is_over_scripts_of_symptoms_and_known_failures_get_a_small_share_of_the_time() -> None:
    known = replace(ONE, name="known", known="why")
    spent = SliceFinished(
        at=8.0,
        backend="fake",
        kind=SliceKind.SCRIPTED,
        index=None,
        seed=1,
        examples=0,
        cases=0,
        deaths=0,
        seconds=8.0,
        unsupported={},
    )
    waiting = scripting([known, spent])
    assert waiting.next(40.0, 200.0, searched=False) is None
    assert waiting.next(40.0, 200.0, searched=True) is not None
    assert waiting.next(80.0, 200.0, searched=False) is not None
    waiting(replace(known, name="another"))
    waiting.making[1][known.fingerprint, known.case] = "known"
    assert waiting.next(80.0, 200.0, searched=False) is None
    waiting(OTHER)
    assert waiting.next(40.0, 200.0, searched=False) is not None


def test_the_script_of_a_case_that_was_minimized_meanwhile_is_forgotten() -> None:
    waiting = scripting([ONE])
    waiting.making[0][ONE.fingerprint, ONE.case] = "one"
    smaller = replace(OTHER, name="one")
    waiting.making[1][smaller.fingerprint, smaller.case] = "one"
    waiting(FindingMinimized(at=2.0, name="one", finding=smaller))
    assert waiting.making == {0: {}, 1: {(smaller.fingerprint, smaller.case): "one"}}


def test_no_script_begins_at_the_very_end() -> None:
    assert scripting([ONE]).next(39.5, 40.0, searched=True) is None


def test_a_script_for_which_a_slice_had_no_time_is_made_after_the_search(tmp_path: Path) -> None:
    class Hurried(FakeJobs):
        """Jobs whose slices make no script."""

        def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
            received = super().next_message(timeout)
            if received is None or self.slices[-1].scripted is not None:
                return received
            job, message = received
            if isinstance(message, Caught):
                return job, replace(message, script_follows=False)
            return super().next_message(timeout) if isinstance(message, HandedOver) else received

    events = list(begin(plan(tmp_path), Hurried(FakeJudge(fails_on_long))).events())
    findings, made = of(FindingFiled, events), of(ScriptMade, events)
    assert findings
    assert {each.name: (each.kept, each.obstacle) for each in made} == {each.name: (True, "") for each in findings}
    assert (Path(findings[0].path) / "repro.py").is_file()
    assert SliceKind.SCRIPTED in [each.kind for each in of(SliceStarted, events)]


def ended(asked: Plan, *messages: AnyMessage | JobEnded) -> list[ScriptMade]:
    """The scripts of a campaign with this finding whose job then says nothing more."""
    jobs = ScriptedJobs([*FOUND, *messages])
    return of(ScriptMade, list(begin(asked, jobs).events()))


def test_a_finding_whose_campaign_is_over_before_its_script_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, events = 0.0, list[Event]()
    monkeypatch.setattr(Campaign, "_clock", lambda _: now)
    monkeypatch.setattr(Limits, "of", lambda *_, **__: Limits(1.0, 1.0, 1.0))
    for event in begin(plan(tmp_path, examples=None, seconds=1.0), FakeJobs(FakeJudge(fails_on_long))).events():
        events.append(event)
        now = 2.0 if isinstance(event, FindingFiled) else now
    (made,) = of(ScriptMade, events)
    assert (made.kept, made.obstacle) == (False, NOT_MADE)
    report = next((tmp_path / "findings").glob("*/report.txt")).read_text()
    assert report.endswith(f"\n\nNo script shows the failure: {NOT_MADE}.\n")


def test_a_campaign_until_a_finding_ends_with_the_scripts_of_all_new_causes_that_it_has_filed(tmp_path: Path) -> None:
    first, other = (
        Caught(
            fingerprint=Fingerprint.of("fake", failure),
            first=decode(7),
            case=decode(7),
            observation=failure,
            verdict=Verdict(observations=(failure,)),
            script_follows=True,
        )
        for failure in (observed(), observed(Kind.UNWRITTEN))
    )
    suspects = (
        Suspect(fingerprint=each.fingerprint, case=each.case, observation=each.observation) for each in (first, other)
    )
    handed = handed_over(first), handed_over(other)
    jobs = ScriptedJobs([*suspects, first, other, *handed, JobEnded(0, "gone")])
    events = list(begin(plan(tmp_path, until_finding=True), jobs).events())
    assert [each.observation.kind for each in of(FindingFiled, events)] == [Kind.OUTPUT_MISMATCH, Kind.UNWRITTEN]
    assert [each.obstacle for each in of(ScriptMade, events)] == ["", ""]
    assert not of(JobFailed, events)


def test_a_job_that_was_killed_by_a_script_is_not_given_it_again(tmp_path: Path) -> None:
    killed = JobEnded(0, "killed", killed=True)
    asked = plan(tmp_path, examples=1)
    made = ended(asked, killed, killed, JobEnded(0, "gone"))
    assert [(each.kept, each.obstacle) for each in made] == [(False, JOB_KILLED)]


def test_a_trial_makes_no_script(tmp_path: Path) -> None:
    events = list(begin(plan(tmp_path, trial=0.0), FakeJobs(FakeJudge(fails_on_long))).events())
    assert of(FindingFiled, events)
    assert not of(ScriptMade, events)
    assert SliceKind.SCRIPTED not in [each.kind for each in of(SliceStarted, events)]
