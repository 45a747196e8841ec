"""The line that is read first says what there is to do; those on the ledger are few."""

import pytest
from campaign_events import checked, filed, finished, kept, started, without_sinks
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.campaign.closing import NO_LONGER, NO_MATCH
from attnfuzz.harness.campaign.events import CampaignResumed, Event, JobFailed, LedgerRemark, Progress
from attnfuzz.harness.campaign.knowledge import JOB_KILLED, OUT_OF_TIME
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.verdict import Level, ledger_lines, left_out_lines, verdict
from attnfuzz.harness.search.messages import NOT_COME_BACK, Tally

CASE = decode_case("fake")
CASES = Progress(at=3000.0, backend="fake", tally=Tally(searched=1200, cases=1234, deaths=0))


def verdict_of(*events: Event) -> tuple[str, Level]:
    found = verdict(Standing.of([started("fake"), CASES, *events]))
    return found.text, found.level


def test_a_campaign_without_findings_is_good() -> None:
    assert verdict_of(finished()) == ("No findings in 1,200 cases over 1:00:00", Level.GOOD)


def test_findings_are_counted_by_state() -> None:
    events = [
        filed(CASE, "one"),
        filed(CASE, "two"),
        filed(CASE, "three", state=State.RETURNED),
        checked(CASE, State.OPEN, "four"),
        checked(CASE, State.FIXED, "five"),
        filed(CASE, "six", known="upstream knows"),
        finished(),
    ]
    text = "2 new findings, 1 returned, 1 open, 1 fixed (1 known), in 1,200 cases over 1:00:00"
    assert verdict_of(*events) == (text, Level.BAD)


def test_failures_of_one_cause_are_counted_as_one() -> None:
    (first, *others) = without_sinks(CASE)
    assert verdict_of(first, *others, finished())[0].startswith("1 new cause (4 failures) in ")
    more = [checked(CASE, State.OPEN, "o"), checked(CASE, State.FIXED, "f"), filed(CASE, "k", known="upstream knows")]
    text = "1 new cause, 1 open (5 failures), 1 fixed (1 known), in 1,200 cases over 1:00:00"
    assert verdict_of(first, *others, *more, finished()) == (text, Level.BAD)


def test_causes_whose_needs_there_was_no_time_to_find_are_counted() -> None:
    raw = [replace(each, ablated=False) for each in (filed(CASE, "one"), filed(CASE, "k", known="upstream knows"))]
    text, _ = verdict_of(*raw, filed(CASE, "two"), finished())
    assert text.startswith("2 new findings, 1 with unknown needs (1 known), in ")


def test_one_finding_is_one_finding() -> None:
    assert verdict_of(checked(CASE, State.OPEN), finished())[0].startswith("1 open finding in ")


@pytest.mark.parametrize("event", [checked(CASE, State.FIXED), filed(CASE, known="upstream knows")])
def test_fixed_and_known_findings_keep_the_verdict_good(event: Event) -> None:
    text, level = verdict_of(event, finished())
    assert text.startswith("No findings")
    assert level is Level.GOOD


def test_a_remark_on_the_ledger_keeps_the_verdict() -> None:
    remark = LedgerRemark(at=3600.0, entry=1, title="a", text="no longer happens")
    assert verdict_of(remark, finished()) == verdict_of(finished())


def test_a_campaign_that_did_not_finish_says_so() -> None:
    assert verdict_of() == ("Not finished: No findings in 1,200 cases over 50:00 so far", Level.GOOD)
    assert verdict_of(finished(interrupted=True))[0].startswith("Stopped early: ")


def test_a_failed_harness_is_not_good() -> None:
    failed = JobFailed(at=3100.0, job=0, text="Traceback")
    text, level = verdict_of(failed, finished())
    assert text.startswith("The harness itself failed: ")
    assert level is Level.FAILED


def test_a_resumed_campaign_is_judged_by_how_it_ends() -> None:
    failed = JobFailed(at=3100.0, job=0, text="Traceback")
    resumed = CampaignResumed(at=3100.0, time=0.0, environment={}, jobs=1, torn_bytes=0)
    assert verdict_of(failed, resumed, finished())[1] is Level.GOOD


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (OUT_OF_TIME, "No findings, 1 suspect not confirmed for lack of time, in "),
        (JOB_KILLED, "No findings, 1 suspect not confirmed because the job was killed each time, in "),
    ],
)
def test_an_unsettled_suspect_is_not_good(reason: str, words: str) -> None:
    text, level = verdict_of(kept(CASE, reason), finished())
    assert text.startswith(words)
    assert level is Level.BAD


@pytest.mark.parametrize(
    "events",
    [
        [kept(CASE, NOT_COME_BACK)],
        [kept(CASE, OUT_OF_TIME, known="upstream knows")],
        [kept(CASE, OUT_OF_TIME), filed(CASE, known="upstream knows")],
        [kept(CASE, OUT_OF_TIME), replace(checked(CASE, State.OPEN), known="upstream knows")],
    ],
    ids=["refuted", "known", "filed since", "checked since"],
)
def test_a_settled_or_known_suspect_keeps_the_verdict_good(events: list[Event]) -> None:
    text, level = verdict_of(*events, finished())
    assert text.startswith(("No findings in ", "No findings (1 known)"))
    assert level is Level.GOOD


def test_without_drawn_cases_the_runs_are_counted_and_nothing_if_there_are_none() -> None:
    rerun = Progress(at=9.0, backend="fake", tally=Tally(cases=12))
    started_ = [started("fake"), filed(CASE)]
    assert verdict(Standing.of([*started_, rerun, finished()])).text == "1 new finding in 12 runs over 1:00:00"
    assert verdict(Standing.of([*started_, finished()])).text == "1 new finding over 1:00:00"


def remark(entry: int, text: str) -> LedgerRemark:
    return LedgerRemark(at=9.0, entry=entry, title=f"Hang in number{entry}", text=text)


def test_calls_that_were_left_out_are_listed_once_for_backends_with_the_same_ones() -> None:
    campaign = replace(
        started(), promised=True, left_out={"one": ("copied",), "two": ("copied",), "three": ("reset", "copied")}
    )
    assert left_out_lines(campaign) == [
        "not mentioned by the API of one, two: copied",
        "not mentioned by the API of three: reset, copied",
    ]
    assert left_out_lines(replace(campaign, left_out={}))[0].startswith("nothing")
    assert left_out_lines(started()) == []


def test_few_entries_are_reported_with_their_titles() -> None:
    assert ledger_lines([remark(3, NO_MATCH), remark(5, NO_LONGER)]) == [
        f"entry 3 (Hang in number3): {NO_MATCH}",
        f"entry 5 (Hang in number5): {NO_LONGER}",
    ]


def test_entries_with_the_same_remark_are_reported_in_one_line() -> None:
    lines = ledger_lines([*(remark(entry, NO_MATCH) for entry in (2, 3, 7, 40)), remark(5, NO_LONGER)])
    assert lines == [f"entries 2, 3, 7 and 40: {NO_MATCH}", f"entry 5 (Hang in number5): {NO_LONGER}"]


def test_a_ledger_without_remarks_adds_no_lines() -> None:
    assert ledger_lines([]) == []
