"""Campaigns on disk: find the one at a path, and write its reports beside its log."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.campaign.home import LOG_NAME, Home
from attnfuzz.harness.campaign.log import LogError, read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.findings.archive import read_records
from attnfuzz.harness.findings.finding import SCRIPT, text_beside
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import CauseView, cause_views
from attnfuzz.harness.report.html import render_html
from attnfuzz.harness.report.junit import render_junit
from attnfuzz.harness.report.markdown import render_issue, render_markdown
from attnfuzz.reference.user_error import UserError

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""GitHub's environment variable with the file for a step's summary."""


class NoCampaignError(UserError):
    """No campaign can be read from a path; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Source:
    """One campaign's log. `home` contains it, None for a log outside of a home."""

    log: Path
    home: Home | None

    @property
    def folder(self) -> Path:
        """The campaign's folder."""
        return self.log.parent

    def standing(self) -> Standing:
        """Fold the log. Raises LogError or OSError."""
        return Standing.of(read_log(self.log))

    def earlier(self) -> Standing | None:
        """Return the standing of the last readable campaign before this one; None if there is none."""
        names = [] if self.home is None else [name for name in self.home.ids() if name < self.folder.name]
        for name in reversed(names):
            try:
                return Standing.of(read_log(self.folder.parent / name / LOG_NAME))
            except (LogError, OSError):
                # A damaged older log must not prevent this report.
                continue
        return None

    def not_run(self, standing: Standing) -> list[str]:
        """List the findings from before this campaign that fail as far as known, and that it did not run."""
        if self.home is None:
            return []
        seen = {filed.name for filed in standing.filed} | {checked.name for checked in standing.checked}
        records, _ = read_records(self.home.findings)
        past = (each for each in records if each.first_seen.campaign < self.folder.name)
        return [each.name for each in past if each.state is not State.FIXED and each.name not in seen]


def locate(path: Path, campaign: str | None = None) -> Source:
    """Find the campaign at `path`: in a home, the one called `campaign`, or else the last.

    Raises:
        NoCampaignError: there is none.

    """
    if not path.exists():
        raise NoCampaignError(f"{path} does not exist: name a home, or the folder or log of a campaign")
    home = Home(path)
    if path.is_dir() and (ids := home.ids()):
        if campaign is not None and campaign not in ids:
            raise NoCampaignError(f"{path} has no campaign {campaign!r}: the last ones are {', '.join(ids[-3:])}")
        return Source(home.log(campaign or ids[-1]), home)
    if campaign is not None:
        raise NoCampaignError(f"{path} has no campaigns/: name a home")
    log = path / LOG_NAME if path.is_dir() else path
    if not log.is_file():
        raise NoCampaignError(f"{path} holds no campaign: name a home, or the folder or log ({LOG_NAME}) of a campaign")
    above = log.parent.parent
    inside = log.name == LOG_NAME and above == Home(above.parent).campaigns
    return Source(log, Home(above.parent) if inside else None)


@dataclass(frozen=True)
class Written:
    """The written files; `issues` has one per new or returned cause that is not in the ledger."""

    html: Path
    junit: Path
    markdown: Path
    issues: tuple[Path, ...]


@dataclass(frozen=True)
class Reports:
    """The input of one campaign's reports; `scripts` are the names of findings with a stand-alone script."""

    standing: Standing
    earlier: Standing | None
    home: Home | None
    records: Sequence[Record] = ()
    troubles: Sequence[str] = ()
    scripts: Collection[str] = ()

    @classmethod
    def of(cls, source: Source, standing: Standing) -> "Reports":
        """Make the reports of the campaign in `source`, with its standing."""
        records, troubles = ([], []) if source.home is None else read_records(source.home.findings)
        return cls(standing, source.earlier(), source.home, records, troubles, scripts_in(source.home))

    @property
    def causes(self) -> list[CauseView]:
        """The campaign's causes."""
        return cause_views(self.standing, self.scripts)

    def html(self) -> bytes:
        """Render the HTML page."""
        return render_html(self.standing, earlier=self.earlier, records=self.records, scripts=self.scripts).encode()

    def junit(self) -> bytes:
        """Render JUnit XML."""
        return render_junit(self.standing, self.scripts)

    def markdown(self) -> bytes:
        """Render the markdown summary."""
        return render_markdown(self.standing, self.earlier, self.scripts).encode()

    def issue(self, cause: CauseView) -> bytes:
        """Render the text of an issue about `cause`."""
        finding, script = cause.finding, None
        if self.home is not None:
            # The home may have moved since the log was written.
            script = text_beside(self.home.findings / as_file_name(finding.name), SCRIPT)
        scripts = [] if script is None else [script]
        text = render_issue(finding.case, finding.observation, self.standing.environment, scripts, cause)
        return text.encode()

    def write_all(self, folder: Path) -> Written:
        """Write all reports into `folder`, and an issue per new or returned cause."""
        news = [each for each in self.causes if each.status in {State.NEW, State.RETURNED}]

        def write(name: str, content: Callable[[], bytes]) -> Path:
            write_durably(folder / name, content())
            return folder / name

        return Written(
            html=write("report.html", self.html),
            junit=write("junit.xml", self.junit),
            markdown=write("summary.md", self.markdown),
            # A foreign log may contain any name.
            issues=tuple(write(f"issues/{each.file_name}.md", partial(self.issue, each)) for each in news),
        )


def scripts_in(home: Home | None) -> frozenset[str]:
    """List the findings in `home` that have a stand-alone script, by name."""
    return frozenset() if home is None else frozenset(path.parent.name for path in home.findings.glob(f"*/{SCRIPT}"))


def write_reports(home: Home, campaign: str, standing: Standing) -> Written:
    """Write the reports of `campaign` beside its log, and append to GitHub's step summary, if any. Raises OSError."""
    source = Source(home.log(campaign), home)
    written = Reports.of(source, standing).write_all(source.folder)
    if summary := os.environ.get(STEP_SUMMARY):
        with Path(summary).open("ab") as file:
            file.write(written.markdown.read_bytes())
    return written
