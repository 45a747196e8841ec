"""The report opens from disk, loads nothing, says everything, and can't be broken by what a backend says."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from campaign_events import MISMATCH, checked, filed, finished, slice_finished, started, without_sinks
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import (
    CampaignResumed,
    CoverageGrew,
    Event,
    GapSeen,
    JobFailed,
    JobRestarted,
    LedgerRemark,
    Progress,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.sightings import Sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import MOST_DRAWN
from attnfuzz.harness.report.html import render_html
from attnfuzz.harness.search.messages import Tally
from attnfuzz.harness.verdict.failures import WrongRows
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.dtypes import DType
from attnfuzz.strategies.coverage import pairs_of, possible_pairs

CASE = decode_case("trtllm_mha")
PRINT = Fingerprint.of("trtllm_mha", MISMATCH)
HOSTILE = (
    "</pre></title></style><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}\x00\x1b[31m\ud800&amp;"
)
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Checker(HTMLParser):
    """Follows which elements are open, and remembers tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    return checker


def standing_of(*events: Event, backend: str = "trtllm_mha", **environment: str) -> Standing:
    return Standing.of([started(backend, **environment), *events])


def words(page: str) -> str:
    """The text of a page with all white space as single blanks."""
    return re.sub(r"\s+", " ", parsed(page).text)


BUSY = (
    Progress(
        at=10.0,
        backend="trtllm_mha",
        tally=Tally(
            searched=90, cases=100, deaths=3, rows=7, margins={"T1": 0.5}, phases={"drawing": 1.0, "judging": 3.0}
        ),
    ),
    CoverageGrew(at=11.0, backend="trtllm_mha", searched=90, pairs=tuple(pairs_of(CASE))),
    filed(CASE, "new-one", report="what is new"),
    filed(CASE, "returned-one", state=State.RETURNED),
    filed(CASE, "known-one", known="upstream knows"),
    checked(CASE, State.OPEN, "open-one"),
    checked(CASE, State.FIXED, "fixed-one"),
    UnconfirmedKept(at=61.0, fingerprint=PRINT, case=CASE, observation=MISMATCH, path="out/u", reason="came not back"),
    GapSeen(at=62.0, fingerprint=PRINT, case=CASE, observation=replace(MISMATCH, message="a gap")),
    slice_finished("trtllm_mha", examples=90, cases=100, deaths=3, unsupported={"no such page": 4}),
    Trouble(at=64.0, text="the corpus is gone"),
    JobRestarted(at=65.0, job=1, text="killed by SIGKILL"),
    CampaignResumed(at=66.0, time=1777613000.0, environment={"torch": "2.13"}, jobs=2, torn_bytes=17),
    LedgerRemark(at=67.0, entry=2, title="an entry", text="no longer happens"),
    finished(),
)


@cache
def busy_page() -> str:
    return render_html(standing_of(*BUSY))


def test_a_page_is_well_formed_and_says_the_verdict_first() -> None:
    page = busy_page()
    text = words(page)
    verdict = "1 new finding, 1 returned, 1 open, 1 fixed (1 known), in 90 cases over 1:00:00"
    assert verdict in text
    assert text.index(verdict) < text.index("Causes") < text.index("Margins") < text.index("Coverage")
    ids = parsed(page).ids
    assert len(ids) == len(set(ids))


def test_every_finding_is_there_with_its_picture_and_the_line_that_replays_it() -> None:
    page = busy_page()
    for name in ("new-one", "returned-one", "known-one", "open-one", "fixed-one"):
        _, _, article = page.partition(f'id="{name}"')
        article = article.partition("</article>")[0]
        assert "wrong-token" in article
        assert f"attnfuzz replay out/findings/{name}" in article
    assert "what is new" in page
    assert re.search(r"<dt>known</dt><dd>upstream knows", page)


def test_a_cause_is_one_article_with_its_symptoms_as_a_table() -> None:
    found = without_sinks(CASE, replace(CASE, backend="torch_sdpa"))
    page = render_html(standing_of(*found, finished()), scripts={"sinks"})
    assert parsed(page).ids.count("sinks") == 1
    assert page.count("<article") == 1
    article = page.partition("<article")[2].partition("</article>")[0]
    for text in ("<dt>needs</dt><dd>sinks", "8 symptoms", "python out/findings/sinks/repro.py", "findings/sinks-7"):
        assert text in article


def test_a_page_begins_with_all_causes_in_a_table() -> None:
    page = render_html(standing_of(*without_sinks(CASE), *BUSY))
    verdict, _, rest = page.partition("</header>")
    assert "1 fixed" in verdict
    table = rest.partition("</table>")[0]
    assert re.findall(r'href="#(.*?)"', table) == [
        "sinks",
        "new-one",
        "returned-one",
        "open-one",
        "fixed-one",
        "known-one",
    ]
    assert "as if the sink were ignored" in table
    assert not re.search(r"<dl|notice", table)


def test_findings_are_ordered_by_urgency() -> None:
    page = render_html(standing_of(*reversed(BUSY[2:7]), finished()))
    names = ["new-one", "returned-one", "open-one", "fixed-one", "known-one"]
    assert [name for name in parsed(page).ids if name in names] == names


def test_all_other_events_are_reported() -> None:
    text = words(busy_page())
    parts = (
        "came not back",
        "a gap",
        "no such page",
        "the corpus is gone",
        "killed by SIGKILL",
        "17 bytes of an incomplete event",
        "entry 2 (an entry): no longer happens",
        "judging 75%",
        "resumed on 2026-05-01 05:23 UTC with 2 jobs",
    )
    assert [each for each in parts if each not in text] == []


def test_nothing_is_loaded_and_only_the_script_of_the_page_runs() -> None:
    page = busy_page()
    checker = parsed(page)
    assert not checker.tags & {"link", "img", "iframe", "object", "embed", "base", "audio", "video"}
    loading = {"src", "href", "xlink:href", "srcset", "action"}
    assert not [value for name, value in checker.attributes if name in loading and not value.startswith("#")]
    assert not re.findall(r"@import|url\((?!#)", page)
    assert not re.findall(r"https?://", page)
    assert page.count("<script") == 1
    assert "Copy buttons beside commands" in page.partition("<script>")[2]


def test_a_failing_row_is_shown_beside_the_expected_one() -> None:
    errors = ((0.0, 1e-3), (0.0, 2.0))
    rows = WrongRows(worst=(3, 1), first=8, expected=(0.5, -1.25), seen=(0.5, None), token=2, head=0, errors=errors)
    page = render_html(standing_of(filed(CASE, observation=replace(MISMATCH, rows=rows))))
    (table,) = re.findall(r'<table class="numbers">(.*?)</table>', page, re.DOTALL)
    assert re.findall(r">([^<>\n]+)<", table) == [
        *("element", "8", "9"),
        *("expected", "0.5", "-1.25"),
        *("seen", "0.5", "not finite"),
    ]
    assert "tokens 2 to 3 of the batch" in page


def test_damaged_numbers_of_a_row_are_drawn_as_far_as_they_go() -> None:
    rows = WrongRows(worst=(9**9, -1), first=0, expected=(), seen=(1.0,), token=0, head=0, errors=((-1.0, 2.0), ()))
    assert render_html(standing_of(filed(CASE, observation=replace(MISMATCH, rows=rows))))


def test_foreign_text_is_text() -> None:
    observation = replace(MISMATCH, message=HOSTILE, kernel=HOSTILE, mode=HOSTILE, place=HOSTILE, tier=HOSTILE)
    backend = "</style><script>alert(1)</script>{{ 7 * 7 }}.py:MINE"
    case = replace(CASE, backend=backend)
    harmless = render_html(standing_of(filed(CASE), *BUSY))
    page = render_html(
        standing_of(
            filed(case, HOSTILE, observation=observation, report=HOSTILE, known=HOSTILE),
            CoverageGrew(at=1.0, backend=backend, searched=3, pairs=tuple(pairs_of(case))),
            Progress(
                at=2.0,
                backend=backend,
                tally=Tally(searched=1, cases=1, deaths=0, margins={HOSTILE: 1}, phases={HOSTILE: 1}),
            ),
            Trouble(at=3.0, text=HOSTILE),
            UnconfirmedKept(
                at=4.0, fingerprint=PRINT, case=case, observation=observation, path=HOSTILE, reason=HOSTILE
            ),
            JobFailed(at=5.0, job=0, text=HOSTILE),
            backend=backend,
            **{HOSTILE: HOSTILE},
        )
    )
    checker = parsed(page)
    assert checker.tags <= parsed(harmless).tags
    assert not [name for name, _ in checker.attributes if name.startswith("on")]
    assert "{{ 7 * 7 }}" in checker.text
    assert "\x00" not in page
    page.encode()


def test_a_campaign_that_has_just_begun_has_a_report() -> None:
    assert "Not finished: No findings over 0 s" in words(render_html(standing_of()))


def test_a_log_without_a_beginning_has_a_report() -> None:
    parsed(render_html(Standing()))


def test_a_harness_that_failed_says_how() -> None:
    page = words(render_html(standing_of(JobFailed(at=1.0, job=0, text="Traceback: KeyError"))))
    assert "The harness itself failed" in page
    assert "Traceback: KeyError" in page


def test_changed_values_of_the_environment_are_marked() -> None:
    then = standing_of(torch="2.12", gpu="B200", driver="580")
    page = render_html(standing_of(torch="2.13", gpu="B200"), earlier=then)
    changed = re.findall(r'<tr class="changed"><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', page)
    assert sorted(changed) == [("driver", "none", "580"), ("torch", "2.13", "2.12")]


def test_an_environment_that_stayed_says_so() -> None:
    then = standing_of(torch="2.13")
    page = words(render_html(standing_of(torch="2.13"), earlier=then))
    assert "No changes since campaign 20260501-043000" in page


def test_an_old_finding_shows_the_times_and_versions_of_its_failures() -> None:
    sightings = (
        Sighting(campaign="20260401-043000", time=1775017800.0, failed=True, environment={"torch": "2.12"}),
        Sighting(campaign="20260501-043000", time=1777609800.0, failed=False, environment={"torch": "2.13"}),
        Sighting(campaign="20260601-043000", time=1780288200.0, failed=True, environment={"torch": "2.14"}),
    )
    record = Record(
        name="an-old-finding",
        path=Path("out/findings/an-old-finding"),
        case=CASE,
        fingerprint=PRINT,
        observation=MISMATCH,
        sightings=sightings,
    )
    page = words(render_html(standing_of(checked(CASE, State.FIXED), torch="2.13"), records=[record]))
    assert "first failed 2026-04-01 04:30 UTC, on torch 2.12" in page
    assert "2.14" not in page


def test_a_limited_number_of_findings_is_drawn_but_all_are_listed() -> None:
    many = [filed(CASE, f"finding-{index}") for index in range(MOST_DRAWN + 5)]
    page = render_html(standing_of(*many))
    assert page.count("wrong-row") - page.count(".wrong-row") == MOST_DRAWN
    assert page.count("attnfuzz replay") == MOST_DRAWN + 5


@pytest.mark.slow
def test_a_page_of_many_backends_and_causes_stays_small() -> None:
    names = [f"backend-{index}" for index in range(20)]
    can = Capability(dtypes=(DType.BFLOAT16,), windows=True, soft_cap=True)
    # Every second pair: no two cells of the map are joined.
    pairs = tuple(sorted(possible_pairs(can))[::2])
    events = [
        replace(started(*names), capabilities=dict.fromkeys(names, can)),
        *(CoverageGrew(at=11.0, backend=name, searched=90, pairs=pairs) for name in names),
        *(filed(CASE, f"cause-{index}", report=f"a line of the report{' ' * 60}\n" * 100) for index in range(100)),
        *(filed(CASE, f"symptom-{index}", cause=f"cause-{index % 100}") for index in range(900)),
        finished(),
    ]
    page = render_html(Standing.of(events))
    assert len(page) < 2_000_000
    assert all(f'id="cause-{index}"' in page for index in range(100))
    assert "Pairs of features of backend-0:" in page
    assert "Pairs of features of backend-19:" not in page
    assert "<h3>backend-19</h3>" in page
    assert "cause-99/report.txt" in page


def test_a_page_stays_small_despite_long_texts() -> None:
    loud = replace(MISMATCH, message="x" * 3_000_000)
    page = render_html(standing_of(filed(CASE, observation=loud, report="y" * 3_000_000)))
    assert len(page) < 1_000_000
    assert "more characters]" in page


def test_a_backend_that_had_no_turn_is_not_passed_over_in_silence() -> None:
    silent = words(render_html(standing_of(finished())))
    assert "trtllm_mha was not searched" in silent
    assert "was not searched" not in words(busy_page())
    sought = replace(started("trtllm_mha"), until_finding=True)
    assert "was not searched" not in words(render_html(Standing.of([sought, filed(CASE), finished()])))


def test_the_end_of_a_campaign_makes_no_peak_of_runs_per_second() -> None:
    def progress(at: float, cases: int) -> Progress:
        return Progress(at=at, backend="trtllm_mha", tally=Tally(searched=cases, cases=cases, deaths=0))

    page = render_html(standing_of(progress(10.0, 100), progress(20.0, 100), progress(20.1, 90), finished(20.2)))
    chart = page.partition("runs per second over time")[2].partition("</svg>")[0]
    assert ">20<" in chart
    assert ">200<" not in chart


def test_the_time_since_the_last_news_is_reported() -> None:
    assert "last new finding59:00 before the end" in words(busy_page())
    assert "last new findingnone" in words(render_html(standing_of(finished())))
