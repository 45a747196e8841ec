"""JUnit XML as CI systems read it."""

import re

import pytest
from campaign_events import MISMATCH, checked, filed, finished, kept, searched, slice_finished, started, without_sinks
from fake_search import decode
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import Event, JobFailed, LedgerRemark, Progress
from attnfuzz.harness.campaign.knowledge import OUT_OF_TIME
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.junit import render_junit
from attnfuzz.harness.search.messages import NOT_COME_BACK, Tally

CASE = decode(5)


def suites(*events: Event) -> dict[str, TestSuite]:
    """The suites of a campaign on the backend "fake" with these events, by name."""
    read = JUnitXml.fromstring(render_junit(Standing.of([started("fake", torch="2.9"), *events])))
    return {suite.name: suite for suite in read}


def cases(suite: TestSuite) -> dict[str, TestCase]:
    return {case.name: case for case in suite}


def test_a_finding_is_a_failure_with_its_report_and_the_line_that_replays_it() -> None:
    suite = suites(filed(CASE, "new-one", report="the <report>"), finished())["fake"]
    case = cases(suite)["new-one"]
    (failure,) = case.result
    assert isinstance(failure, Failure)
    assert (failure.type, failure.message) == ("OutputMismatch", "new: computes a wrong output (fake, decode)")
    assert failure.text == "the <report>"
    assert "attnfuzz replay out/findings/new-one" in case.system_out
    # No example was drawn, so that the search can't be said to have passed.
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (2, 1, 0, 1)


def test_a_cause_is_one_test_with_its_symptoms_in_the_text() -> None:
    first, *others = without_sinks(CASE, replace(CASE, backend="other"))
    read = JUnitXml.fromstring(render_junit(Standing.of([started("fake", "other"), first, *others, finished()])))
    by_name = {suite.name: suite for suite in read}
    (failure,) = cases(by_name["fake"])["sinks"].result
    assert failure.message == "new: computes a wrong output with sinks (fake, other, 2 modes)"
    assert "needs: sinks\nbackends: fake, other\nmodes: decode, verify" in failure.text
    assert (
        "- new: computes a wrong LSE with sinks (other, verify): attnfuzz replay out/findings/sinks-7" in failure.text
    )
    assert read.failures == 1
    assert "also shows sinks, which is a test of fake" in cases(by_name["other"])["search"].system_out


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "the campaign ended before its turn"),
        ([slice_finished("fake", unsupported={"no sinks": 9})], "none of its cases is supported: no sinks"),
    ],
)
def test_a_backend_without_a_judged_case_did_not_pass(events: list[Event], reason: str) -> None:
    (result,) = cases(suites(*events, finished())["fake"])["search"].result
    assert isinstance(result, Skipped)
    assert result.message == reason


def test_the_search_is_a_test_that_passes_and_takes_the_time() -> None:
    progress = Progress(
        at=3, backend="fake", tally=Tally(searched=9, cases=12, deaths=1, phases={"judge": 2.0, "kernels": 1.5})
    )
    suite = suites(progress, finished())["fake"]
    search = cases(suite)["search"]
    assert not search.result
    assert search.time == suite.time == 3.5
    assert search.system_out == (
        "9 cases drawn and judged, 0 not supported, 12 runs in all, 0 pairs of features reached, 1 worker died"
    )


def test_known_findings_are_skipped_with_the_reason() -> None:
    (result,) = cases(suites(filed(CASE, "k", known="upstream #1"), finished())["fake"])["k"].result
    assert isinstance(result, Skipped)
    assert result.message == "known: upstream #1"


def test_fixed_findings_pass() -> None:
    tests = cases(suites(checked(CASE, State.FIXED, "f"), checked(CASE, State.OPEN, "o"), finished())["fake"])
    assert not tests["f"].result
    assert "passes now" in tests["f"].system_out
    assert isinstance(tests["o"].result[0], Failure)


@pytest.mark.parametrize("text", ["\x00\x1b[31m", "\ufffe\uffff", "\udc80", "]]>", "\"<&>'", "\N{ROCKET}"])
def test_no_message_breaks_the_xml(text: str) -> None:
    hostile = replace(MISMATCH, message=text, place=text)
    suite = suites(filed(CASE, text, observation=hostile, report=text, known=None), finished())["fake"]
    assert suite.failures == 1


def test_a_campaign_that_did_not_end_is_an_error() -> None:
    (result,) = cases(suites()["attnfuzz"])["campaign"].result
    assert isinstance(result, Error)
    assert "or killed" in result.message
    (result,) = cases(suites(finished(interrupted=True))["attnfuzz"])["campaign"].result
    assert isinstance(result, Error)
    assert "stopped early" in result.message
    assert not cases(suites(searched("fake"), finished())["attnfuzz"])["campaign"].result


def test_a_campaign_that_judged_nothing_is_an_error() -> None:
    (result,) = cases(suites(finished())["attnfuzz"])["campaign"].result
    assert isinstance(result, Error)
    assert "no case was judged" in result.message


def test_a_harness_that_failed_is_an_error_with_its_last_words() -> None:
    (result,) = cases(suites(JobFailed(at=1, job=0, text="Traceback"), finished())["attnfuzz"])["campaign"].result
    assert isinstance(result, Error)
    assert result.text == "Traceback"


def test_a_remark_on_the_ledger_is_a_test_that_passes() -> None:
    remark = LedgerRemark(at=9, entry=2, title="old", text="no longer happens")
    assert not cases(suites(remark, finished())["attnfuzz"])["ledger entry 2"].result


def test_calls_that_were_left_out_are_a_test_that_passes() -> None:
    begun = replace(started("fake"), promised=True, left_out={"fake": ("copied",)})
    left_out = cases(suites(begun, finished())["attnfuzz"])["left out"]
    assert not left_out.result
    assert "copied" in left_out.system_out


def test_the_counts_of_the_whole_add_up() -> None:
    events = [started("fake", "other"), filed(CASE), filed(CASE, "k", known="why"), JobFailed(at=1, job=0, text="")]
    read = JUnitXml.fromstring(render_junit(Standing.of(events)))
    assert (read.tests, read.failures, read.errors) == (5, 1, 1)
    assert sum(suite.tests for suite in read) == 5
    assert next(iter(read)).timestamp == "2026-05-01T04:30:00"
    sent = re.findall(r'<property name="(.*?)" value="(.*?)"', render_junit(Standing.of(events)).decode())
    assert sent[:2] == [("seed", "7"), ("attnfuzz", "1.0")]


def test_a_suspect_that_was_not_confirmed_for_want_of_time_is_a_failure() -> None:
    (result,) = cases(suites(kept(CASE, OUT_OF_TIME), finished())["fake"])["unconfirmed a-suspect"].result
    assert isinstance(result, Failure)
    assert result.message == "not confirmed: computes a wrong output (fake, decode)"
    assert OUT_OF_TIME in (result.text or "")
    assert "unconfirmed a-suspect" not in cases(suites(kept(CASE, NOT_COME_BACK), finished())["fake"])
