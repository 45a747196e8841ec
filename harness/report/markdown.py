"""A campaign, and what changed between two, as markdown for GitHub's step summaries."""

from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.report.compare import Comparison, compare
from attnfuzz.harness.report.gfm import template
from attnfuzz.harness.report.ledger_remarks import ledger_lines
from attnfuzz.harness.report.verdict import verdict

MOST_ROWS = 50
"""Of a table, and a quarter of that in a list. GitHub drops a summary of more than 1 MiB as a whole."""

MOST_REPORTS = 8
"""Reports that are shown in full, each up to MOST_CHARACTERS_OF_REPORT."""

MOST_CHARACTERS_OF_REPORT = 6000


def render_markdown(standing: Standing, earlier: Standing | None = None) -> str:
    """The campaign as markdown, with what changed since an earlier one; always less than 1 MiB."""
    return template("summary.md.j2").render(
        standing=standing,
        started=standing.started,
        verdict=verdict(standing),
        ledger=ledger_lines(standing.remarks),
        comparison=None if earlier is None else compare(earlier, standing),
        **_LIMITS,
    )


def render_comparison(comparison: Comparison) -> str:
    """What changed between two campaigns as markdown."""
    return template("comparison.md.j2").render(comparison=comparison, **_LIMITS)


_LIMITS = {
    "most_rows": MOST_ROWS,
    "most_items": MOST_ROWS // 4,
    "most_reports": MOST_REPORTS,
    "most_characters_of_report": MOST_CHARACTERS_OF_REPORT,
}
