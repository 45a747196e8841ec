"""A campaign as one self-contained HTML file, which loads nothing and can be read without scripts."""

from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise

import jinja2
from markupsafe import Markup

from attnfuzz.harness.campaign.capabilities import capability_of
from attnfuzz.harness.campaign.events import CampaignStarted
from attnfuzz.harness.campaign.standing import SECONDS_PER_SAMPLE, Standing, TimelinePoint
from attnfuzz.harness.files.templates import environment_of
from attnfuzz.harness.findings.finding import REPORT
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.report.cause_view import cause_groups, cause_views, status_of
from attnfuzz.harness.report.charts import COLORS, Margin, Series, line_chart, margin_chart, share_bar
from attnfuzz.harness.report.compare import changes
from attnfuzz.harness.report.coverage import Coverage, named
from attnfuzz.harness.report.titles import title_of
from attnfuzz.harness.report.verdict import ledger_lines, left_out_lines, verdict
from attnfuzz.harness.verdict.printable import printable, shortened
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.verdict.wording import clock, count, date

_UNFILTERED = 6
"""Number of causes up to which the page has no filter."""

_MOST_LISTED = 100
"""Most rows of tables without a bound: unconfirmed failures, gaps, restarts."""

_FEW = 10
"""Rows of tables that each cause or each backend has."""

_MOST_OF_MAPS = 600_000
"""Bytes of all maps of pairs, unless the first is larger: those of 60 backends on a GPU made a page of 20 MB."""


def render_html(
    standing: Standing,
    *,
    earlier: Standing | None = None,
    records: Sequence[Record] = (),
    scripts: Collection[str] = (),
) -> str:
    """Render the report of a campaign.

    `earlier` is the campaign before it, whose environment is compared; `records` are the filed records of its
    findings, and `scripts` the names of those that have a stand-alone script.
    """
    then = None if earlier is None else earlier.started
    changed = () if earlier is None else changes(earlier.environment, standing.environment)
    growth = [
        Series(
            backend, [(0.0, 0.0), *score.growth, *([(score.tally.searched, len(score.pairs))] if score.growth else [])]
        )
        for backend, score in standing.scores.items()
    ]
    coverages = [
        Coverage.of(backend, capability_of(standing.started, backend), score.pairs)
        for backend, score in standing.scores.items()
    ]
    environment = markup_environment()
    environment.filters.update(
        clock=clock, count=count, date=date, shortened=shortened, named=named, printable=printable
    )
    environment.globals.update(
        title_of=title_of,
        status_of=status_of,
        ledger_lines=ledger_lines,
        colors=COLORS,
        most=_MOST_LISTED,
        least=_UNFILTERED,
        few=_FEW,
        report=REPORT,
    )
    return environment.get_template("report.html.j2").render(
        standing=standing,
        verdict=verdict(standing),
        facts=_facts(standing),
        groups=cause_groups(standing, cause_views(standing, scripts), {record.name: record for record in records}),
        margins=_margins(standing),
        coverages=coverages,
        mapped=_mapped(coverages),
        growth=line_chart("Pairs of features reached against cases", growth, lambda x: f"{x:,.0f}"),
        timelines=_timelines(standing),
        phases={
            backend: (score.tally.phases, share_bar("Shares of the time", score.tally.phases))
            for backend, score in standing.scores.items()
            if score.tally.phases
        },
        interruptions=sorted([*standing.resumed, *standing.restarted_jobs], key=lambda event: event.at),
        changes=changed,
        then=then,
    )


@cache
def markup_environment() -> jinja2.Environment:
    """Return the environment of HTML and XML templates, which escapes values and drops forbidden characters."""
    return environment_of(
        "attnfuzz.harness.report",
        autoescape=True,
        finalize=lambda each: printable(each) if isinstance(each, str) and not isinstance(each, Markup) else each,
    )


def _mapped(coverages: Sequence[Coverage]) -> list[str]:
    """Choose the backends whose maps the page has room for, the first one among them."""
    chosen: list[str] = []
    size = 0
    for coverage in coverages:
        if size < _MOST_OF_MAPS and coverage.map is not None:
            size += len(coverage.map)
            if not chosen or size < _MOST_OF_MAPS:
                chosen.append(coverage.backend)
    return chosen


def _facts(standing: Standing) -> list[tuple[str, str]]:
    """List settings and results, as names and values."""
    started = standing.started
    facts = [] if started is None else _settings(started)
    if standing.resumed:
        facts.append(("resumed", count(len(standing.resumed), "time")))
    facts += [
        ("cases", f"{standing.cases:,} drawn and judged"),
        ("runs", f"{standing.runs:,} with earlier cases, minimizing and confirming"),
        ("speed", f"{standing.rate(standing.runs):.1f} runs per second"),
        ("pairs of features", f"{standing.pairs:,}"),
        ("last new pair", _before_the_end(standing, standing.coverage_at)),
        ("last new finding", _before_the_end(standing, standing.finding_at)),
        ("worker deaths", f"{standing.deaths:,}"),
    ]
    return facts


def _settings(started: CampaignStarted) -> list[tuple[str, str]]:
    if started.seconds is not None:
        budget = clock(started.seconds)
    else:
        budget = f"{count(started.examples or 0, 'case')} for each backend"
    facts = [
        ("campaign", started.campaign),
        ("started", date(started.time)),
        ("backends", ", ".join(started.backends)),
        ("preset", f"{started.preset}, {budget}"),
        ("seed", f"{started.seed}"),
        ("jobs", f"{started.jobs}"),
        ("contract", started.contract),
        ("expected false positives", f"{started.alpha:g}, before confirmation"),
    ]
    particular = {
        "guard": started.guard,
        "until": "the first finding" if started.until_finding else None,
        "ledger": started.ledger,
        "only": ", ".join((*started.modes, *started.dtypes, *started.only)) or None,
        "without": ", ".join(started.never) or None,
        "left out": "; ".join(left_out_lines(started)) or None,
    }
    return facts + [(name, str(value)) for name, value in particular.items() if value is not None]


def _before_the_end(standing: Standing, at: float | None) -> str:
    return "none" if at is None else f"{clock(standing.at - at)} before the end"


def _margins(standing: Standing) -> dict[str, Markup]:
    """Draw a chart per backend with margins, of the tiers that have one."""
    charts = {}
    for backend, score in standing.scores.items():
        failed: dict[str, list[float]] = {}
        for finding in standing.findings:
            if finding.case.backend == backend and finding.observation.margin is not None:
                failed.setdefault(finding.observation.tier, []).append(finding.observation.margin)
        margins = [
            Margin(tier, score.tally.margins.get(tier), tuple(failed.get(tier, ())))
            for tier in Tier
            if tier in score.tally.margins or tier in failed
        ]
        if margins:
            charts[backend] = margin_chart(f"Largest margins of {backend}", margins)
    return charts


def _timelines(standing: Standing) -> list[tuple[str, Markup]]:
    """Draw charts over the time of the campaign, with their titles."""
    samples = [TimelinePoint(0.0, 0, 0, 0, 0), *standing.timeline]
    rates = [
        (after.at, (after.runs - before.runs) / (after.at - before.at))
        for before, after in pairwise(_far_apart(samples))
        if after.at > before.at
    ]
    drawn = {
        "runs per second": Series("runs per second", rates),
        "pairs of features reached": Series("pairs", [(each.at, each.pairs) for each in samples], steps=True),
        "findings": Series("findings", [(each.at, each.findings) for each in samples], steps=True),
        "worker deaths": Series("deaths", [(each.at, each.deaths) for each in samples], steps=True),
    }
    return [(title, line_chart(f"{title} over time", [line], clock)) for title, line in drawn.items()]


def _far_apart(samples: list[TimelinePoint]) -> list[TimelinePoint]:
    """Drop the last sample but one if it is too close to the end for a rate."""
    if len(samples) > 2 and samples[-1].at - samples[-2].at < SECONDS_PER_SAMPLE / 2:
        return [*samples[:-2], samples[-1]]
    return samples
