"""A cause as every report shows it: failure, needs, symptoms, triage and reproducer."""

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.campaign.causes import UNDECIDED, Cause, causes_of
from attnfuzz.harness.campaign.events import AnyFinding, FindingChecked, FindingFiled
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.family import family_of
from attnfuzz.harness.findings.finding import SCRIPT
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.sightings import Sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.reduce.ablation import passes_if
from attnfuzz.harness.report.compare import changes
from attnfuzz.harness.report.row_errors import draw_errors
from attnfuzz.harness.report.titles import Severity, severity, slug, title
from attnfuzz.harness.verdict.blame import Blamed
from attnfuzz.harness.verdict.failures import REACHED_BY, REACHED_BY_IN_0_1
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.wording import clock, count, date, replay_line

MOST_DRAWN = 40
"""Causes that are drawn, to keep the file small enough for browsers."""

KNOWN = "known"
"""The status of a cause in the ledger, instead of a state."""

_MOST_VERSIONS = 4


class SymptomGroup(NamedTuple):
    """The symptoms of a cause with the same failure and modes in each of the backends."""

    failure: str
    backends: str
    modes: str


@dataclass(frozen=True)
class CauseView:
    """A cause in a report: its findings, those that pass, whether it has a script, and whose fault it is if known.

    `obstacle` is a sentence about a script that is missing or has not shown the failure, or "". `alike` is the number
    of causes under its heading, and `first` the name of the first of these.
    """

    cause: Cause
    passing: tuple[AnyFinding, ...] = ()
    has_script: bool = False
    obstacle: str = ""
    blamed: Blamed | None = None
    alike: int = 1
    first: str = ""

    @property
    def heading(self) -> str:
        """A line above the first of several causes that are probably one bug, or ""."""
        leads = self.first == self.cause.name
        return f"Probably one bug, {self.alike} causes: {UNDECIDED}" if leads and self.alike > 1 else ""

    @property
    def finding(self) -> AnyFinding:
        """The finding that represents the cause."""
        return self.cause.findings[0]

    @property
    def status(self) -> str:
        """Its state, or `KNOWN`."""
        fixed = self.cause.state is State.FIXED
        return KNOWN if self.cause.known is not None and not fixed else str(self.cause.state)

    @property
    def failures(self) -> int:
        """The number of findings that show it now; none if it is fixed."""
        return 0 if self.cause.state is State.FIXED else len(self.cause.findings)

    @property
    def title(self) -> str:
        """The cause in half a line."""
        return title_of_cause(self.cause)

    @property
    def headline(self) -> str:
        """The title, and whose fault it is if that was looked for."""
        fault = "" if self.blamed is None else self.blamed.fault.words
        return f"{self.title}: {fault}" if fault else self.title

    @property
    def explanation(self) -> str:
        """The judge's explanation, or else the failure itself; one line."""
        first, *others = self.finding.observation.message.splitlines() or [""]
        reached = (REACHED_BY, REACHED_BY_IN_0_1)
        reasons = [line for line in others if not line.startswith(reached)] if self.finding.observation.tier else []
        return " ".join(reasons) if reasons else first

    @property
    def recurrence(self) -> str:
        """How often it comes back, in a line or two; empty if it always does."""
        rate = self.finding.recurrence
        return "" if rate is None else rate.words

    @property
    def lacks_needs(self) -> bool:
        """Whether not all that the failure needs is known. Of a known cause it does not matter."""
        return self.status != KNOWN and not self.finding.ablated

    @property
    def backends(self) -> list[str]:
        """The backends in which it shows."""
        return _backends(self.cause)

    @property
    def modes(self) -> list[str]:
        """The modes in which it shows."""
        return _modes(self.cause)

    @property
    def file_name(self) -> str:
        """A file name for it, without a suffix: its title, and what tells its finding from others with that title."""
        _, _, rest = self.cause.name.rpartition(f"-{self.finding.observation.kind}-")
        return as_file_name(f"{slug(self.title)}-{rest or self.cause.name}")

    @property
    def order(self) -> tuple[int, bool, int]:
        """The sort key that puts the worst causes first, and of equally bad ones that with the most findings.

        A wrong output whose mistake is known comes before NaN, which tells little about its cause.
        """
        worst = min(severity(each.observation) for each in self.cause.findings)
        unexplained = not any(each.observation.mistakes for each in self.cause.findings)
        if worst is Severity.WRONG and not unexplained:
            worst = Severity.NOT_FINITE
        return worst, unexplained, -len(self.cause.findings)

    @property
    def symptoms(self) -> list[AnyFinding]:
        """Everything that shows it or did; empty for a single finding, which needs no table."""
        every = [*self.cause.findings, *self.passing]
        return every if len(every) > 1 else []

    @property
    def symptom_groups(self) -> list[SymptomGroup]:
        """The failing symptoms, grouped."""
        modes: dict[tuple[str, str], list[str]] = {}
        for each in self.cause.findings if self.symptoms else ():
            seen = each.observation
            failure = f"{seen.kind} at {seen.place}" if seen.place else str(seen.kind)
            modes.setdefault((failure, each.case.backend), []).append(seen.mode or "-")
        backends: dict[tuple[str, str], list[str]] = {}
        for (failure, backend), those in modes.items():
            backends.setdefault((failure, ", ".join(sorted(set(those)))), []).append(backend)
        return [SymptomGroup(failure, ", ".join(those), in_modes) for (failure, in_modes), those in backends.items()]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Further facts about the cause, as names and values."""
        facts = []
        if self.cause.needs:
            facts.append(("needs", ", ".join(self.cause.needs)))
            facts += [("passes", words) for words in passes_if(self.cause.needs)]
        if self.alike > 1:
            facts.append(("probably", f"one bug with {count(self.alike - 1, 'other cause')}: {UNDECIDED}"))
        if self.lacks_needs and self.failures:
            why = "the failure is flaky" if self.recurrence else "no time left for ablation"
            facts.append(("other needs" if self.cause.needs else "needs", f"unknown: {why}"))
        if self.recurrence:
            facts.append(("rate", self.recurrence))
        if self.obstacle:
            facts.append(("script", self.obstacle))
        if self.blamed is not None:
            facts.append(("fault", " ".join((self.blamed.conclusion, *self.blamed.sentences[:1]))))
        if self.symptoms:
            facts.append(("backends", ", ".join(self.backends)))
            facts.append(("modes", ", ".join(self.modes)))
        if self.status == KNOWN and self.cause.known is not None:
            facts.append(("known", self.cause.known))
        return [(name, in_a_line(value)) for name, value in facts if value]

    @property
    def reproducers(self) -> list[str]:
        """Command lines that run the smallest case again, one of them without attnfuzz if there is a script."""
        lines = [replay_line(self.finding.path)]
        if self.has_script:
            lines.append(in_a_line(f"python {shlex.quote(str(Path(self.finding.path) / SCRIPT))}"))
        return lines

    @property
    def triage(self) -> str | None:
        """The command line of the triage; None if the cause is known or fixed."""
        if self.status in {KNOWN, State.FIXED}:
            return None
        return in_a_line(f"attnfuzz triage {shlex.quote(self.finding.path)}")

    @property
    def report(self) -> str:
        """The full report of the finding that represents it."""
        return report_of(self.finding)


def title_of_cause(cause: Cause) -> str:
    """Describe a cause in half a line."""
    first = cause.findings[0]
    return title(first.observation, cause.needs, _backends(cause), _modes(cause), first.recurrence)


def _backends(cause: Cause) -> list[str]:
    return list(dict.fromkeys(each.case.backend for each in cause.findings))


def _modes(cause: Cause) -> list[str]:
    return list(dict.fromkeys(each.observation.mode for each in cause.findings if each.observation.mode))


def status_of(finding: AnyFinding) -> str:
    """Return a finding's state, or `KNOWN`."""
    return KNOWN if finding.known is not None else str(finding.state)


def cause_views(standing: Standing, scripts: Collection[str] = ()) -> list[CauseView]:
    """Group all findings of a campaign by cause: new and returned ones, open, known and fixed ones, the worst first."""
    causes = causes_of([*standing.findings, *standing.fixed], standing.merged)
    views = [_view(cause.findings, scripts, standing) for cause in causes]
    headings: dict[tuple[str, ...], list[CauseView]] = {}
    for view in sorted(views, key=lambda view: (_STATUSES.index(view.status), *view.order)):
        headings.setdefault((view.status, *view.cause.heading), []).append(view)
    return [
        replace(view, alike=len(together), first=together[0].cause.name)
        for together in headings.values()
        for view in together
    ]


def _view(findings: tuple[AnyFinding, ...], scripts: Collection[str], standing: Standing) -> CauseView:
    failing = tuple(each for each in findings if each.state is not State.FIXED)
    passing = tuple(each for each in findings if each.state is State.FIXED)
    cause = Cause(failing or passing)
    return CauseView(
        cause,
        passing if failing else (),
        has_script=cause.name in scripts,
        obstacle=standing.obstacles.get(cause.name, ""),
        blamed=next((standing.blamed[each.name] for each in cause.findings if each.name in standing.blamed), None),
    )


def view_of(views: Collection[CauseView], finding: AnyFinding) -> CauseView:
    """Return the view of the cause that a finding shows."""
    return next(view for view in views if finding in (*view.cause.findings, *view.passing))


class DrawnCause(NamedTuple):
    """A cause as a page shows it. `circumstances` is a clause each; after the first 40 causes there are no pictures."""

    view: CauseView
    circumstances: list[str]
    drawing: Markup | None
    errors: Markup | None


class CauseGroup(NamedTuple):
    """The causes of one status, below a heading with its meaning."""

    title: str
    meaning: str
    causes: list[DrawnCause]


_STATUSES = (State.NEW, State.RETURNED, State.OPEN, KNOWN, State.FIXED)

_MEANINGS = {
    State.NEW: "first seen in this campaign",
    State.RETURNED: "fails again after a campaign in which it passed",
    State.OPEN: "failed in an earlier campaign, and still fails",
    State.FIXED: "failed in an earlier campaign, and passes now",
    KNOWN: "accepted in the ledger",
}


def cause_groups(standing: Standing, views: Collection[CauseView], records: Mapping[str, Record]) -> list[CauseGroup]:
    """Group all causes of a campaign by status, those that need attention first; `records` are by finding's name."""
    left = MOST_DRAWN
    result = []
    for status, meaning in _MEANINGS.items():
        chosen = [view for view in views if view.status == status]
        if chosen:
            draw = partial(_drawn, standing, records)
            drawn = [draw(view, in_full=index < left) for index, view in enumerate(chosen)]
            result.append(CauseGroup(status.capitalize(), meaning, drawn))
            left = max(left - len(chosen), 0)
    return result


def _drawn(standing: Standing, records: Mapping[str, Record], view: CauseView, *, in_full: bool) -> DrawnCause:
    finding = view.finding
    circumstances = [*_circumstances(finding), *_seen(standing, records.get(finding.name))]
    rows = finding.observation.rows
    return DrawnCause(
        view,
        circumstances,
        drawing=family_of(finding.case).picture(finding.case, finding.observation) if in_full else None,
        errors=draw_errors(rows) if in_full and rows is not None else None,
    )


def report_of(finding: AnyFinding) -> str:
    """Return a finding's full report, or a summary if it was only run again."""
    if isinstance(finding, FindingFiled):
        return finding.report.strip()
    return (
        f"{finding.observation.kind}: {finding.observation.message}\n\n{family_of(finding.case).describe(finding.case)}"
    )


def _circumstances(finding: AnyFinding) -> Iterator[str]:
    observation = finding.observation
    if observation.kernel:
        yield f"in {observation.kernel}"
    if observation.tier:
        yield f"tier {observation.tier}"
    if observation.margin is not None:
        yield f"{observation.margin:.3g} times the bound"
    if isinstance(finding, FindingChecked):
        yield f"failed in {finding.times} of {count(finding.runs, 'run')} in this campaign"
    else:
        yield f"found {clock(finding.at)} into the campaign"
    yield from family_of(finding.case).circumstances(finding.case)


def _seen(standing: Standing, record: Record | None) -> list[str]:
    """Describe when and on which versions an old finding first and last failed before this campaign."""
    if record is None or standing.started is None:
        return []
    failed = [each for each in record.sightings if each.failed and each.campaign < standing.started.campaign]
    if not failed:
        return []
    first, last = failed[0], failed[-1]
    facts = [f"first failed {_when(first, standing)}"]
    if last is not first:
        facts.append(f"last failed before {_when(last, standing)}")
    return facts


def _when(sighting: Sighting, standing: Standing) -> str:
    other = [
        f"{change.name} {change.before or 'none'}" for change in changes(sighting.environment, standing.environment)
    ]
    on = f", on {', '.join(other[:_MOST_VERSIONS])}" if other else ""
    return f"{date(sighting.time)}{on}"
