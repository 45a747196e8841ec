"""The reports of a campaign as files beside its log, where its user and a runner look for them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.campaign.events import AnyFinding
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.defects.results import DefectScore
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.findings.archive import read_records
from attnfuzz.harness.findings.finding import SCRIPT, text_beside
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.html import render_html
from attnfuzz.harness.report.issue import render_issue
from attnfuzz.harness.report.junit import render_junit
from attnfuzz.harness.report.markdown import render_markdown
from attnfuzz.harness.report.sources import Source

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable in which GitHub's runners name the file that is shown as the summary of a step."""


@dataclass(frozen=True)
class Written:
    """The files that were written; `issues` has one for each new or returned finding that the ledger does not know."""

    html: Path
    junit: Path
    markdown: Path
    issues: tuple[Path, ...]


@dataclass(frozen=True)
class Reports:
    """What the reports of one campaign are drawn from; `troubles` has a line for each finding that can't be read."""

    standing: Standing
    earlier: Standing | None
    home: Home | None
    defects: DefectScore | None = None
    records: Sequence[Record] = ()
    troubles: Sequence[str] = ()

    @classmethod
    def of(cls, source: Source, standing: Standing, defects: DefectScore | None = None) -> "Reports":
        """The reports of the campaign in `source`, which stands so."""
        records, troubles = ([], []) if source.home is None else read_records(source.home.findings)
        return cls(standing, source.earlier(), source.home, defects, records, troubles)

    def html(self) -> bytes:
        """The page that opens from disk."""
        page = render_html(self.standing, earlier=self.earlier, defects=self.defects, records=self.records)
        return page.encode()

    def junit(self) -> bytes:
        """The XML that CI systems read."""
        return render_junit(self.standing)

    def markdown(self) -> bytes:
        """The summary of a step."""
        return render_markdown(self.standing, self.earlier).encode()

    def issue(self, finding: AnyFinding) -> bytes:
        """The text of an issue."""
        script = self._script(finding)
        scripts = [] if script is None else [script]
        return render_issue(finding.case, finding.observation, self.standing.environment, scripts).encode()

    def write_all(self, folder: Path) -> Written:
        """Write all of them into `folder`, and an issue for each finding that somebody should hear of."""
        news = [each for each in self.standing.unexpected if each.state in {State.NEW, State.RETURNED}]

        def write(name: str, content: Callable[[], bytes]) -> Path:
            write_durably(folder / name, content())
            return folder / name

        return Written(
            html=write("report.html", self.html),
            junit=write("junit.xml", self.junit),
            markdown=write("summary.md", self.markdown),
            # A log may be somebody else's, and name anything.
            issues=tuple(write(f"issues/{as_file_name(each.name)}.md", partial(self.issue, each)) for each in news),
        )

    def _script(self, finding: AnyFinding) -> str | None:
        """The stand-alone script of a finding in this home, wherever it lay when the log was written."""
        if self.home is None:
            return None
        return text_beside(self.home.findings / as_file_name(finding.name), SCRIPT)


def write_reports(home: Home, campaign: str, standing: Standing, *, defects: DefectScore | None = None) -> Written:
    """Write the reports of `campaign` beside its log, and its summary for the runner if one asks. Raises OSError."""
    source = Source(home.log(campaign), home)
    written = Reports.of(source, standing, defects).write_all(source.folder)
    if summary := os.environ.get(STEP_SUMMARY):
        with Path(summary).open("ab") as file:
            file.write(written.markdown.read_bytes())
    return written
