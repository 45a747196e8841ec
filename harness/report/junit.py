"""A campaign as JUnit XML: a suite per backend, a test for the search and one for each finding."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.finding_view import report_of
from attnfuzz.harness.report.html import markup_environment
from attnfuzz.harness.report.verdict import verdict
from attnfuzz.harness.verdict.wording import clock, count, headline, replay_line


@dataclass(frozen=True)
class Test:
    """A test case: it passed unless there is an `outcome`: "failure", "error" or "skipped", with the reason in a line.

    `kind` and `text` belong to a failure or an error; `out` is what it says in any case. `seconds` is its time.
    """

    name: str
    outcome: str = ""
    reason: str = ""
    kind: str = ""
    text: str = ""
    out: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """The tests of one backend, or of the campaign as a whole."""

    name: str
    tests: tuple[Test, ...]

    def number(self, outcome: str) -> int:
        """How many tests ended so."""
        return sum(test.outcome == outcome for test in self.tests)


def render_junit(standing: Standing) -> bytes:
    """The campaign as JUnit XML, in UTF-8. It must have started."""
    started = standing.started
    assert started is not None
    suites = [_campaign(standing), *(_backend(standing, backend) for backend in standing.scores)]
    # Readers take a time without a zone for UTC.
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started.time))
    template = markup_environment().get_template("junit.xml.j2")
    return template.render(standing=standing, started=started, suites=suites, timestamp=timestamp).encode()


def _campaign(standing: Standing) -> Suite:
    """What concerns all backends: whether the campaign came to its end, and what it says of the ledger."""
    result = verdict(standing).text
    if standing.failure is not None:
        text = standing.failure.text
        ended = Test("campaign", "error", "the harness itself failed", "JobFailed", text, result)
    elif standing.finished is None:
        ended = Test("campaign", "error", "it runs still, or was killed: this is not all", "Unfinished", out=result)
    elif standing.finished.interrupted:
        ended = Test("campaign", "error", "it was stopped early: this is not all", "Unfinished", out=result)
    else:
        ended = Test("campaign", out=result)
    remarks = [
        Test(f"ledger entry {remark.entry}", out=f"{remark.title}: {remark.text}") for remark in standing.remarks
    ]
    return Suite("attnfuzz", (ended, *remarks))


def _backend(standing: Standing, backend: str) -> Suite:
    score = standing.scores[backend]
    out = (
        f"{count(score.tally.cases, 'case')}, {count(score.tally.searched, 'example')} drawn, "
        f"{count(len(score.pairs), 'pair')} of features reached, {count(score.tally.deaths, 'worker')} died"
    )
    search = Test("search", out=out, seconds=sum(score.tally.phases.values()))
    if not score.tally.cases:
        search = replace(search, outcome="skipped", reason="the campaign never came to it")
    return Suite(backend, (search, *_findings(standing, backend), *_unsettled(standing, backend)))


def _findings(standing: Standing, backend: str) -> Iterator[Test]:
    for finding in [*standing.findings, *standing.fixed]:
        if finding.case.backend != backend:
            continue
        replay = replay_line(finding.path)
        if finding.state is State.FIXED:
            yield Test(finding.name, out=f"passes now\n{replay}")
        elif finding.known is not None:
            yield Test(finding.name, "skipped", f"known: {finding.known}", out=replay)
        else:
            yield Test(
                finding.name,
                "failure",
                f"{finding.state}: {headline(backend, finding.observation)}",
                kind=finding.observation.kind.value,
                text=report_of(finding),
                out=f"{replay}\nseen {clock(finding.at)} into the campaign",
            )


def _unsettled(standing: Standing, backend: str) -> Iterator[Test]:
    for suspect in standing.unsettled:
        if suspect.case.backend == backend:
            yield Test(
                f"unconfirmed {Path(suspect.path).name}",
                "failure",
                f"not confirmed: {headline(backend, suspect.observation)}",
                kind=suspect.observation.kind.value,
                text=f"{suspect.observation.message}\n{suspect.reason}",
                out=replay_line(suspect.path),
            )
