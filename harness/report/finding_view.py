"""A finding as a report shows it: in words, as a picture, with the line that replays it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from attnfuzz.harness.campaign.events import AnyFinding, FindingChecked, FindingFiled
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.record import Record, Sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.compare import changes
from attnfuzz.harness.report.drawing import draw_case
from attnfuzz.harness.verdict.describe import describe
from attnfuzz.harness.verdict.printable import shortened
from attnfuzz.harness.verdict.wording import clock, count, date

MOST_DRAWN = 40
"""Findings that are drawn: pictures of more would make a file that no browser likes."""

_MOST_CHARACTERS = 20_000
_MOST_VERSIONS = 4


@dataclass(frozen=True)
class FindingView:
    """What a report shows of one finding. `circumstances` is a clause each; `drawing` is None after the first 40."""

    finding: AnyFinding
    circumstances: list[str]
    drawing: Markup | None

    @property
    def report(self) -> str:
        """The finding at length, as far as a page has room for it."""
        return shortened(report_of(self.finding), _MOST_CHARACTERS)

    @property
    def settled(self) -> bool:
        """Whether it needs no attention."""
        return self.finding.known is not None or self.finding.state is State.FIXED


@dataclass(frozen=True)
class FindingGroup:
    """The findings of one state, below a heading that says what it means."""

    title: str
    meaning: str
    findings: list[FindingView]


def finding_groups(standing: Standing, records: Mapping[str, Record]) -> list[FindingGroup]:
    """All findings of a campaign, those first that somebody has to look at; groups without any are left out.

    `records` has what is on file of them, by name, as far as there is anything.
    """
    known = [finding for finding in standing.findings if finding.known is not None]
    by_state = {state: [each for each in standing.unexpected if each.state is state] for state in State}
    groups: list[tuple[str, str, list[AnyFinding]]] = [
        ("New", "seen for the first time in this campaign", by_state[State.NEW]),
        ("Returned", "fails again, after a campaign in which it passed", by_state[State.RETURNED]),
        ("Open", "seen before, and fails still", by_state[State.OPEN]),
        ("Fixed", "failed in an earlier campaign, and passes now", [*standing.fixed]),
        ("Known", "in the ledger, with a reason", known),
    ]
    left = MOST_DRAWN
    result = []
    for title, meaning, findings in groups:
        if findings:
            views = [
                FindingView(
                    finding,
                    [*_circumstances(finding), *_seen(standing, records.get(finding.name))],
                    draw_case(finding.case, finding.observation) if index < left else None,
                )
                for index, finding in enumerate(findings)
            ]
            result.append(FindingGroup(title, meaning, views))
            left = max(left - len(findings), 0)
    return result


def report_of(finding: AnyFinding) -> str:
    """A finding at length: its report, or what is known of one that was only run again."""
    if isinstance(finding, FindingFiled):
        return finding.report.strip()
    return f"{finding.observation.kind}: {finding.observation.message}\n\n{describe(finding.case)}"


def _circumstances(finding: AnyFinding) -> Iterator[str]:
    observation = finding.observation
    if observation.kernel:
        yield f"in {observation.kernel}"
    if observation.tier:
        yield f"tier {observation.tier}"
    if observation.margin is not None:
        yield f"{observation.margin:.3g} times the bound"
    if isinstance(finding, FindingChecked):
        yield f"failed {finding.times} of {count(finding.runs, 'time')} when it was run again"
    else:
        yield f"found {clock(finding.at)} into the campaign"
    if finding.case.relation is not None:
        yield f"run once more and compared: {finding.case.relation.words}"


def _seen(standing: Standing, record: Record | None) -> list[str]:
    """When and on what an old finding first and last failed, before or in this campaign."""
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
