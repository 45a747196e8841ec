"""What a report says of a cause is the same everywhere: it comes from one view."""

import pytest
from campaign_events import MISMATCH, checked, filed, finished, started, without_sinks
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import CausesMerged, Event, FindingTriaged, ScriptMade
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.campaign_answer import campaign_answer
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import CauseView, cause_views, view_of
from attnfuzz.harness.report.html import render_html
from attnfuzz.harness.report.junit import render_junit
from attnfuzz.harness.report.markdown import render_markdown
from attnfuzz.harness.report.verdict import verdict
from attnfuzz.harness.verdict.blame import Blame, Blamed
from attnfuzz.harness.verdict.failures import REACHED_BY, Kind
from attnfuzz.reference.mistake import Mistake

FAKE, OTHER = decode_case("fake"), decode_case("other")
SINKS = without_sinks(FAKE, OTHER)


def views(*events: Event) -> list[CauseView]:
    return cause_views(Standing.of([started("fake", "other"), *events]), scripts={"sinks"})


def test_a_cause_lists_its_needs_backends_and_modes() -> None:
    (view,) = views(*SINKS)
    assert view.title == "computes a wrong output with sinks (fake, other, 2 modes)"
    assert view.facts == [("needs", "sinks"), ("backends", "fake, other"), ("modes", "decode, verify")]
    assert view.explanation == "as if the sink were ignored"
    assert view.reproducers == ["attnfuzz replay out/findings/sinks", "python out/findings/sinks/repro.py"]
    assert view.triage == "attnfuzz triage out/findings/sinks"
    assert [each.name for each in view.symptoms] == [each.name for each in SINKS]


def test_a_script_that_does_not_show_the_failure_is_counted_and_says_why_everywhere() -> None:
    one, other = filed(FAKE, "one"), filed(OTHER, "other")
    obstacle = "its calls found nothing wrong"
    made = [
        ScriptMade(at=5.0, name="one", kept=False, obstacle=obstacle),
        ScriptMade(at=6.0, name="other", kept=True),
    ]
    standing = Standing.of([started("fake", "other"), one, other, *made, finished()])
    words = f"No script shows the failure: {obstacle}."
    assert [("script", words) in view.facts for view in cause_views(standing)].count(True) == 1
    assert "1 without a script that shows the failure" in verdict(standing).text
    for text in (render_junit(standing).decode(), render_markdown(standing), render_html(standing)):
        assert words in text
        assert "1 without a script that shows the failure" in text


def test_a_script_that_was_made_again_and_shows_the_failure_needs_no_remark() -> None:
    made = [ScriptMade(at=at, name="one", kept=True, obstacle=text) for at, text in ((5.0, "no time"), (9.0, ""))]
    (view,) = views(filed(FAKE, "one"), *made)
    assert view.obstacle == ""


def test_a_cause_says_whose_fault_it_is() -> None:
    blame = Blamed(fault=Blame.CALLER, conclusion="The caller is at fault.", sentences=("batch_size is 2.", "More."))
    (view,) = views(*SINKS, FindingTriaged(at=9, name="sinks", blame=blame))
    assert view.headline == f"{view.title}: the caller is at fault"
    assert ("fault", "The caller is at fault. batch_size is 2.") in view.facts
    (untriaged,) = views(*SINKS)
    assert untriaged.headline == untriaged.title


def test_a_cause_that_needs_nan_in_memory_states_how_it_passes() -> None:
    needs = ("NaN behind the last key", "sinks")
    (view,) = views(replace(filed(FAKE, "one"), needs=needs))
    assert view.facts == [
        ("needs", "NaN behind the last key, sinks"),
        ("passes", "if the slots behind the last key hold numbers"),
    ]


def test_symptoms_that_differ_in_modes_or_backends_alone_are_one_row() -> None:
    (view,) = views(*SINKS)
    assert view.symptom_groups == [
        ("OutputMismatch at out", "fake, other", "decode, verify"),
        ("LseMismatch at lse", "fake, other", "decode, verify"),
    ]
    (view,) = views(*SINKS[:-1])
    assert view.symptom_groups == [
        ("OutputMismatch at out", "fake, other", "decode, verify"),
        ("LseMismatch at lse", "fake", "decode, verify"),
        ("LseMismatch at lse", "other", "decode"),
    ]


def test_a_cause_that_was_not_ablated_says_so() -> None:
    (view,) = views(replace(filed(FAKE, "one"), ablated=False))
    assert view.facts == [("needs", "unknown: no time left for ablation")]


def test_a_single_finding_needs_no_table() -> None:
    (view,) = views(filed(FAKE, "one"))
    assert (view.title, view.failures) == ("computes a wrong output (fake, decode)", 1)
    assert not view.facts
    assert not view.symptoms
    assert not view.symptom_groups
    assert view.reproducers == ["attnfuzz replay out/findings/one"]


def test_causes_that_turned_out_to_be_one_are_one() -> None:
    one, two = filed(FAKE, "one"), filed(OTHER, "two")
    assert len(views(one, two)) == 2
    (view,) = views(one, two, CausesMerged(at=61.0, name="two", cause="one"))
    assert view.backends == ["fake", "other"]
    assert view_of([view], two) is view


def test_a_cause_with_one_passing_symptom_is_not_fixed() -> None:
    (view,) = views(checked(FAKE, State.OPEN, "one"), checked(FAKE, State.FIXED, "two", cause="one"))
    assert (view.status, view.failures) == ("open", 1)
    assert [(each.name, each.state) for each in view.symptoms] == [("one", State.OPEN), ("two", State.FIXED)]
    (fixed,) = views(checked(FAKE, State.FIXED, "one"), checked(FAKE, State.FIXED, "two", cause="one"))
    assert (fixed.status, fixed.failures, fixed.triage) == ("fixed", 0, None)


def test_a_cause_that_was_seen_before_is_not_new_because_of_another_symptom() -> None:
    (view,) = views(checked(FAKE, State.OPEN, "one"), filed(FAKE, "two", cause="one"))
    assert view.status == "open"


def test_a_cause_is_known_if_all_of_its_findings_are() -> None:
    known = [replace(each, known="upstream knows") for each in SINKS]
    (view,) = views(*known)
    assert (view.status, view.facts[-1], view.triage) == ("known", ("known", "upstream knows"), None)
    (view,) = views(*known[:-1], SINKS[-1])
    assert (view.status, view.finding.name) == ("new", SINKS[-1].name)


@pytest.mark.parametrize(
    ("message", "tier", "explanation"),
    [
        (f"wrong\n{REACHED_BY}a page\nas if doubled", "T1", "as if doubled"),
        ("wrong\nas if the keys were\nmerged in base e", "T1", "as if the keys were merged in base e"),
        (f"wrong\n{REACHED_BY}a page", "T1", "wrong"),
        ("wrong\na server gets there so: a page\nas if doubled", "T1", "as if doubled"),
        ("raised\na line of a traceback", "", "raised"),
        ("", "", ""),
    ],
)
def test_the_explanation_comes_from_the_judge_or_from_the_title(message: str, tier: str, explanation: str) -> None:
    (view,) = views(filed(FAKE, observation=replace(MISMATCH, message=message, tier=tier)))
    assert view.explanation == explanation


def test_causes_that_are_probably_one_bug_stand_under_one_heading() -> None:
    one, other = (replace(filed(FAKE, name), needs=("sinks",)) for name in ("one", "other"))
    window = replace(filed(FAKE, "window"), needs=("window",))
    standing = Standing.of([started("fake"), one, window, other, finished()])
    heading = "Probably one bug, 2 causes: same needs, same kind, same library"
    assert [(view.cause.name, view.heading) for view in cause_views(standing)] == [
        ("one", heading),
        ("other", ""),
        ("window", ""),
    ]
    assert [each.heading for each in campaign_answer("night", None, standing, ()).causes] == ["one", "one", "window"]
    assert render_html(standing).count(heading) == 1
    words = "one bug with 1 other cause: same needs, same kind, same library"
    for text in (render_junit(standing).decode(), render_markdown(standing), render_html(standing)):
        assert text.count(words) == 2


def test_wrong_rows_with_a_known_mistake_come_before_nan_which_comes_before_other_wrong_rows() -> None:
    wrong = replace(MISMATCH, margin=100.0)
    seen = {
        "wrong": wrong,
        "nan": replace(wrong, kind=Kind.NOT_FINITE),
        "explained": replace(wrong, mistakes=(Mistake.SINK,)),
    }
    events = [replace(filed(FAKE, name), observation=observation) for name, observation in seen.items()]
    assert [view.cause.name for view in views(*events)] == ["explained", "nan", "wrong"]
