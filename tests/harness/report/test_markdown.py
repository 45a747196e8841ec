"""The summary of a step and the text of an issue, as GitHub shows them."""

import pytest
from campaign_events import MISMATCH, checked, filed, finished, slice_finished, started, without_sinks
from fake_search import decode
from harness_cases import CALLS
from markdown_it import MarkdownIt
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import (
    CoverageGrew,
    GapSeen,
    JobFailed,
    JobRestarted,
    LedgerRemark,
    Progress,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import cause_views
from attnfuzz.harness.report.markdown import code, escape, fenced, render_issue, render_markdown
from attnfuzz.harness.search.messages import Tally
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun
from attnfuzz.reference import case_file

CASE = decode(5)
HOSTILE = "a | b `c` <script>x</script> ``` </details>\n# @somebody \\| *d* \x1b \udc80"


def html(markdown: str) -> str:
    """The markdown as GitHub's flavour is rendered, with tables."""
    return str(MarkdownIt("commonmark").enable("table").render(markdown))


def everything(text: str, times: int) -> Standing:
    """A campaign that has so many of everything, with `text` in it."""
    observation = replace(MISMATCH, message=text, place=text)
    fingerprint = Fingerprint.of("fake", observation)
    gap = GapSeen(at=9, fingerprint=fingerprint, case=CASE, observation=observation)
    lost = UnconfirmedKept(at=9, fingerprint=fingerprint, case=CASE, observation=observation, path=text, reason=text)
    standing = Standing.of([started(*(f"fake{number}{text}" for number in range(times)), **{text: text})])
    for number in range(times):
        backend = f"fake{number}{text}"
        for event in (
            filed(CASE, f"{number}{text}", observation=observation, report=text * 100),
            filed(CASE, f"k{number}{text}", observation=observation, known=text),
            checked(CASE, State.FIXED, f"o{number}{text}", observation=observation),
            Progress(at=9, backend=backend, tally=Tally(searched=1, cases=1, deaths=1, margins={f"T{text}": 0.5})),
            CoverageGrew(at=9, backend=backend, searched=1, pairs=((f"a{text}=1", f"b{number}=2"),)),
            slice_finished(backend, unsupported={text: 1}),
            lost,
            gap,
            LedgerRemark(at=9, entry=number, title=text, text=text),
            Trouble(at=9, text=text),
            JobRestarted(at=9, job=0, text=text),
        ):
            standing(event)
    standing(JobFailed(at=9, job=0, text=text * 100))
    return standing


def test_the_summary_begins_with_the_verdict_and_lists_findings_by_state() -> None:
    events = [started("fake"), filed(CASE, "n"), checked(CASE, State.OPEN, "o"), checked(CASE, State.FIXED, "f")]
    lines = render_markdown(Standing.of([*events, finished()])).splitlines()
    assert lines[0] == "# attnfuzz: 1 new finding, 1 open, 1 fixed, over 1:00:00"
    rows = [line for line in lines if "attnfuzz replay" in line]
    assert [row.split(" | ")[0] for row in rows] == ["| new", "| open", "| fixed"]
    assert "computes a wrong output (fake, decode)" in rows[0]


def test_a_cause_is_one_row_with_its_symptoms_below() -> None:
    events = [started("fake", "other"), *without_sinks(CASE, replace(CASE, backend="other")), finished()]
    text = render_markdown(Standing.of(events), scripts={"sinks"})
    (row,) = [line for line in text.splitlines() if "attnfuzz replay" in line]
    assert row.startswith("| new | computes a wrong output with sinks (fake, other, 2 modes) |")
    assert row.split(" | ")[-2] == "sinks"
    assert text.count("<details>") == 1
    assert "- modes: decode, verify" in text
    assert "- `python out/findings/sinks/repro.py`" in text
    assert "| LseMismatch at lse | fake, other | decode, verify |" in text
    assert html(text).count("<table>") == 3


def test_a_known_finding_has_its_reason_and_no_report() -> None:
    text = render_markdown(Standing.of([started("fake"), filed(CASE, known="upstream"), finished()]))
    assert "| known: upstream |" in text
    assert "<details>" not in text


def test_a_campaign_that_did_not_end_says_so() -> None:
    assert "still running, or was killed" in render_markdown(Standing.of([started("fake")]))
    assert "still running" not in render_markdown(Standing.of([started("fake"), finished()]))


def test_changes_since_the_last_campaign_are_reported() -> None:
    earlier = Standing.of([started("fake", campaign="before", torch="2.8"), filed(CASE, "gone"), finished()])
    text = render_markdown(Standing.of([started("fake", torch="2.9"), finished()]), earlier)
    assert "## Since before" in text
    assert "- torch: `2.8` → `2.9`" in text
    assert "- Not seen again: 1" in text


def test_no_text_breaks_out_of_the_summary() -> None:
    standing = everything(HOSTILE, 2)
    page = html(render_markdown(standing, everything(HOSTILE, 1)))
    assert "<script>" not in page
    assert page.count("<details>") == page.count("</details>") == 2
    # Each table has as many cells in each row as in its head: no bar got through.
    for table in page.split("<table>")[1:]:
        head, *rows = table.split("</table>")[0].split("<tr>")[1:]
        assert {row.count("<td") for row in rows} == {head.count("<th")}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["<", "\N{ROCKET}", HOSTILE])
def test_the_summary_fits_whatever_happens(text: str) -> None:
    standing = everything((text * 400)[:400], 60)
    assert len(render_markdown(standing, standing).encode()) < 1 << 20


def test_backticks_and_bars_stay_inside_of_code() -> None:
    assert code("a|b") == "`a\\|b`"
    assert code("`") == "`` ` ``"
    assert html(code("<b> `` c")) == "<p><code>&lt;b&gt; `` c</code></p>\n"
    assert fenced("a\n```\nb").startswith("````\n")
    assert html(escape("*a* <b> [c](d) #1 |")) == "<p>*a* &lt;b&gt; [c](d) #1 |</p>\n"


def test_an_issue_has_all_that_upstream_needs() -> None:
    finding = filed(CASE, observation=replace(MISMATCH, kind=Kind.EMPTY_ROW))
    text = render_issue(finding.case, finding.observation, {"torch": "2.9"}, ["def run():\n    it_fails()\n"])
    assert text.startswith("# computes wrong values for rows that see no key (fake, decode)\n")
    assert MISMATCH.message in text
    assert "`a_kernel`, in step 0. The error is 7 times the bound of a correct kernel." in text
    assert "clause empty\\_rows: " in text
    assert "step 0    decode: (q 1, kv 5)" in text
    assert text.count("def run():\n    it_fails()\n") == 2
    assert "its first lines list its requirements" in text
    assert "- torch: `2.9`" in text
    saved = text.split("```json\n")[1].split("```")[0]
    assert case_file.decode(saved.encode()) == CASE


def test_an_issue_of_a_cause_lists_needs_and_other_symptoms() -> None:
    (view,) = cause_views(Standing.of([started("fake"), *without_sinks(CASE, needs=("sinks", "window"))]))
    text = render_issue(CASE, MISMATCH, {}, cause=view)
    assert "The case passes without sinks, or without window." in text
    assert "## Other symptoms\n" in text
    assert "| LseMismatch at lse | fake | decode, verify |" in text
    assert "<table>" in html(text)
    (alone,) = cause_views(Standing.of([started("fake"), filed(CASE)]))
    assert render_issue(CASE, MISMATCH, {}, cause=alone) == render_issue(CASE, MISMATCH, {})


def test_an_issue_and_the_reports_give_the_rate_of_a_flaky_failure() -> None:
    recurrence = Recurrence(way=Rerun.LOAD, runs=100, failed=3, load=8)
    standing = Standing.of([started("fake"), replace(filed(CASE), recurrence=recurrence)])
    (view,) = cause_views(standing)
    rate = "3 of 100 runs failed"
    assert rate in render_issue(CASE, MISMATCH, {}, cause=view)
    assert rate in render_markdown(standing)
    assert rate in dict(view.facts)["rate"]


def test_a_failure_after_other_cases_is_not_called_flaky_and_has_this_in_its_title() -> None:
    always = Recurrence(way=Rerun.HISTORY, runs=4, failed=4, history=1)
    (view,) = cause_views(Standing.of([started("fake"), replace(filed(CASE), recurrence=always)]))
    assert " after earlier cases (" in view.title
    assert view.recurrence.startswith("Fails after earlier cases: 4 of 4 runs failed, in a fresh worker")
    assert "such as a plan or a workspace, may be stale" in view.recurrence
    assert replace(always, failed=3).words.startswith("Flaky: 3 of 4 runs failed")


def test_an_issue_without_a_script_leaves_the_case() -> None:
    text = render_issue(CASE, MISMATCH, {})
    assert "repro.py" not in text
    assert "attnfuzz replay case.json" in text


@pytest.mark.slow
def test_an_issue_is_never_longer_than_github_takes() -> None:
    hostile = replace(MISMATCH, message=HOSTILE * 1000, place=HOSTILE * 100)
    long = "def run():\n    " + "x()\n    " * 20_000
    text = render_issue(decode(*range(3000)), hostile, {HOSTILE: HOSTILE * 99}, [long])
    assert len(text) < 65_536
    assert "please attach its file" in text
    assert "`attnfuzz export case.json`\nwrites it" in text
    assert "<script>" not in html(text)


def test_an_issue_has_the_first_script_that_fits() -> None:
    long, short = "# long\n" * 10_000, "def run():\n    short()\n"
    text = render_issue(CASE, MISMATCH, {}, [long, short])
    assert "# long" not in text
    assert "## The calls\n```python\ndef run():\n    short()\n```" in text


def test_an_issue_of_a_case_made_of_calls_lists_the_calls() -> None:
    text = render_issue(replace(CALLS, notes=("the pool had 900 pages",)), MISMATCH, {})
    assert "call 0    attend: x int32[1]" in text
    assert "note      the pool had 900 pages" in text
