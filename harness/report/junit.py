"""A campaign as JUnit XML: a suite per backend, a test for the search and one for each cause."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import KNOWN, CauseView, cause_views, status_of
from attnfuzz.harness.report.html import markup_environment
from attnfuzz.harness.report.suites import Suite, Test
from attnfuzz.harness.report.titles import title_of
from attnfuzz.harness.report.verdict import left_out_lines, verdict
from attnfuzz.harness.verdict.wording import clock, count, replay_line


def render_junit(standing: Standing, scripts: Collection[str] = ()) -> bytes:
    """Render the started campaign as JUnit XML in UTF-8; `scripts` names the findings with a stand-alone script."""
    started = standing.started
    assert started is not None
    causes = cause_views(standing, scripts)
    suites = [_campaign(standing), *(_backend(standing, backend, causes) for backend in standing.scores)]
    # Readers assume UTC without a zone.
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started.time))
    template = markup_environment().get_template("junit.xml.j2")
    return template.render(standing=standing, started=started, suites=suites, timestamp=timestamp).encode()


def _campaign(standing: Standing) -> Suite:
    """Make the suite of the campaign as a whole: its end, remarks on the ledger, and calls that were left out."""
    result = verdict(standing).text
    if standing.failure is not None:
        text, fixable = standing.failure.text, standing.failure.fixable
        title = "the campaign ended early" if fixable else "the harness itself failed"
        ended = Test("campaign", "error", title, "JobFailed", text, result)
    elif standing.finished is None:
        ended = Test("campaign", "error", "still running, or killed: incomplete", "Unfinished", out=result)
    elif standing.finished.interrupted:
        ended = Test("campaign", "error", "the campaign was stopped early: incomplete", "Unfinished", out=result)
    elif standing.idle:
        ended = Test("campaign", "error", "no case was judged", "Idle", out=result)
    else:
        ended = Test("campaign", out=result)
    remarks = [
        Test(f"ledger entry {remark.entry}", out=f"{remark.title}: {remark.text}") for remark in standing.remarks
    ]
    left_out = [Test("left out", out=line) for line in left_out_lines(standing.started)]
    return Suite("attnfuzz", (ended, *remarks, *left_out))


def _backend(standing: Standing, backend: str, causes: Sequence[CauseView]) -> Suite:
    score = standing.scores[backend]
    out = (
        f"{count(score.tally.searched, 'case')} drawn and judged, {score.unsupported.total():,} not supported, "
        f"{count(score.tally.cases, 'run')} in all, "
        f"{count(len(score.pairs), 'pair')} of features reached, {count(score.tally.deaths, 'worker')} died"
    )
    for cause in causes:
        if backend in cause.backends and cause.finding.case.backend != backend:
            out += f"\nalso shows {cause.cause.name}, which is a test of {cause.finding.case.backend}"
    search = Test("search", out=out, seconds=sum(score.tally.phases.values()))
    if not score.tally.cases:
        refused = f"none of its cases is supported: {score.usual_refusal}"
        reason = refused if score.unsupported else "the campaign ended before its turn"
        search = replace(search, outcome="skipped", reason=reason)
    # Each cause is a test in one suite, that of its smallest case.
    own = (_cause(cause) for cause in causes if cause.finding.case.backend == backend)
    return Suite(backend, (search, *own, *_unsettled(standing, backend)))


def _cause(view: CauseView) -> Test:
    name, finding = view.cause.name, view.finding
    out = "\n".join(view.reproducers)
    if view.status == State.FIXED:
        return Test(name, out=f"passes now\n{out}")
    if view.status == KNOWN:
        return Test(name, "skipped", f"known: {view.cause.known}", out=out)
    return Test(
        name,
        "failure",
        f"{view.status}: {view.headline}",
        kind=finding.observation.kind.value,
        text="\n".join([view.report, *_more(view)]),
        out=f"{out}\nfound {clock(finding.at)} into the campaign",
    )


def _more(view: CauseView) -> Iterator[str]:
    """Yield facts about the cause beyond its report, and its symptoms."""
    for name, value in view.facts:
        yield f"{name}: {value}"
    for symptom in view.symptoms:
        yield f"- {status_of(symptom)}: {title_of(symptom, symptom.needs)}: {replay_line(symptom.path)}"


def _unsettled(standing: Standing, backend: str) -> Iterator[Test]:
    for suspect in standing.unsettled:
        if suspect.case.backend == backend:
            yield Test(
                f"unconfirmed {Path(suspect.path).name}",
                "failure",
                f"not confirmed: {title_of(suspect)}",
                kind=suspect.observation.kind.value,
                text=f"{suspect.observation.message}\n{suspect.reason}",
                out=replay_line(suspect.path),
            )
