"""A fuzz test as a campaign: causes, corpus, findings with scripts, and reports."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import run
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.report.cause_view import KNOWN, CauseView, cause_views
from attnfuzz.harness.report.files import scripts_in, write_reports
from attnfuzz.harness.report.titles import title_of
from attnfuzz.harness.report.verdict import verdict, why_idle
from attnfuzz.harness.verdict.wording import replay_line
from attnfuzz.reference.user_error import UserError


class CampaignFailed(Exception):
    """The harness itself failed; the message has its error."""


class NothingJudged(UserError):
    """The campaign says nothing about its backends."""


class Found(NamedTuple):
    """The findings of a fuzz test as texts: `new` ones, those `known` to the ledger, and lines on how to go on."""

    new: list[str]
    known: list[str]
    again: str


@dataclass(frozen=True)
class FuzzCampaign:
    """A campaign of `plan`."""

    plan: Plan

    def found(self) -> Found:
        """Run it, and write its reports into its home. Raises UserError, OSError, CampaignFailed."""
        ended = run(self.plan)
        home, standing = Home(self.plan.out), ended.standing
        written = write_reports(home, ended.campaign, standing)
        if standing.failure is not None:
            raise CampaignFailed(standing.failure.text)
        if standing.idle:
            why = why_idle(standing, more="give more --attn-time or --attn-examples")
            raise NothingJudged(f"{verdict(standing).text}: {why}")
        causes = cause_views(standing, scripts_in(home))
        entries = () if self.plan.ledger is None else Ledger.load(self.plan.ledger).entries
        settled = ((each.title, each.cause.known) for each in causes if each.status == KNOWN)
        recognized = (
            (each.title, each.text)
            for number, each in enumerate(entries, 1)
            if number in standing.recognized and standing.recognized[number].passed
        )
        return Found(
            new=[*map(_text, _unexpected(causes)), *_unsettled(standing)],
            known=[f"known: {title}: {why}" for title, why in (*settled, *recognized)],
            again=f"Report: {written.html}\nThe same search: --attn-seed {self.plan.seed}",
        )


def _unexpected(causes: Sequence[CauseView]) -> Iterator[CauseView]:
    """Select the causes of current failures that the ledger does not know."""
    return (each for each in causes if each.failures and each.status != KNOWN)


def _text(cause: CauseView) -> str:
    """Describe a cause at length, with its facts, and the lines that run it."""
    facts = [f"{name}: {value}" for name, value in cause.facts]
    return "\n".join([f"{cause.status}: {cause.title}", cause.report.rstrip(), *facts, "", *cause.reproducers])


def _unsettled(standing: Standing) -> Iterator[str]:
    """Describe the failures that were neither confirmed nor refuted."""
    for kept in standing.unsettled:
        yield f"not confirmed: {title_of(kept)}: {kept.reason}\n{replay_line(kept.path)}"
