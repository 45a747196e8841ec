"""A campaign as an answer in JSON."""

from collections.abc import Sequence
from pathlib import Path

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.answers import CampaignAnswer, CampaignBackend, CampaignCause, ListedFailure
from attnfuzz.harness.cli.status import reached_share
from attnfuzz.harness.report.cause_view import CauseView, cause_views
from attnfuzz.harness.report.files import scripts_in
from attnfuzz.harness.report.verdict import ledger_lines, verdict


def campaign_answer(name: str, home: Home | None, standing: Standing, reports: Sequence[Path]) -> CampaignAnswer:
    """Return a campaign as an answer. `home` is where its findings are, to check whether they have scripts."""
    failure, finished, started = standing.failure, standing.finished, standing.started
    return CampaignAnswer(
        campaign=name,
        result=verdict(standing).text,
        clean=standing.clean,
        finished=finished is not None,
        interrupted=finished is not None and finished.interrupted,
        failed=None if failure is None else failure.text,
        seed=None if started is None else started.seed,
        seconds=standing.at,
        cases=standing.cases,
        runs=standing.runs,
        deaths=standing.deaths,
        backends=tuple(_backend(standing, backend) for backend in standing.scores),
        causes=tuple(map(_cause, cause_views(standing, scripts_in(home)))),
        unconfirmed=tuple(kept.path for kept in standing.unconfirmed),
        known_failures=standing.known_without_finding,
        ledger=tuple(ledger_lines(standing.remarks)),
        left_out={} if started is None else started.left_out,
        reports=tuple(map(str, reports)),
    )


def _backend(standing: Standing, name: str) -> CampaignBackend:
    tally = standing.score(name).tally
    here = [finding for finding in standing.findings if finding.case.backend == name]
    return CampaignBackend(
        name=name,
        cases=tally.searched,
        runs=tally.cases,
        unsupported=standing.score(name).unsupported.total(),
        deaths=tally.deaths,
        coverage=reached_share(standing, name),
        findings=len(here),
        known=sum(finding.known is not None for finding in here),
    )


def _cause(view: CauseView) -> CampaignCause:
    return CampaignCause(
        name=view.cause.name,
        state=view.status,
        known=view.cause.known,
        title=view.title,
        fault=None if view.blamed is None else view.blamed.fault.value,
        needs=view.cause.needs,
        heading=view.first,
        backends=tuple(view.backends),
        failure=ListedFailure.of(view.finding.observation),
        finding=view.finding.path,
        findings=tuple(finding.path for finding in view.cause.findings),
        reproducers=tuple(view.reproducers),
    )
