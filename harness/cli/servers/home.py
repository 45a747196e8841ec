"""`attnfuzz report` and `attnfuzz findings` in a home of `attnfuzz serve`, whose findings are traces.

An `OtherHome` of the core's commands.
"""

from collections.abc import Sequence
from pathlib import Path

from attnfuzz.harness.cli.answers import FindingInCampaign
from attnfuzz.harness.cli.servers.answers import ServerFinding, ServerFindings, ShownServerFinding
from attnfuzz.harness.cli.servers.serve import serve_answer
from attnfuzz.harness.cli.terminal import Terminal, answer, details, print_line
from attnfuzz.harness.serve.findings import SCRIPT, ServeRecord
from attnfuzz.harness.serve.findings import read_serve_records as read_records
from attnfuzz.harness.serve.log import is_serve_log as is_log
from attnfuzz.harness.serve.log import read_serve_log
from attnfuzz.harness.serve.reports import render_serve_html, render_serve_junit, write_serve_reports
from attnfuzz.harness.serve.run import Served
from attnfuzz.harness.serve.standing import ServeStanding

__all__ = ["answer_list", "answer_one", "command", "is_log", "read_records", "report", "script"]

command = "attnfuzz serve"
script = SCRIPT


def report(log: Path, *, html: Path | None, junit: Path | None) -> None:
    """Write the reports of a campaign against a server; by default all, next to its log."""
    standing = ServeStanding.of(read_serve_log(log)[0])
    print_line(Terminal(), f"{standing.verdict}.")
    files: tuple[Path, ...] = tuple(file for file in (html, junit) if file is not None)
    if html is not None:
        html.write_text(render_serve_html(standing))
    if junit is not None:
        junit.write_bytes(render_serve_junit(standing))
    files = files or write_serve_reports(log.parent, standing)
    for file in files:
        print_line(details(), f"Wrote {file}.")
    answer(serve_answer(Served(log.parent.name, standing, files)))


def answer_list(records: Sequence[ServeRecord]) -> None:
    """Answer `findings list --json`."""
    answer(ServerFindings(findings=tuple(map(_listed, records))))


def answer_one(record: ServeRecord, campaigns: tuple[FindingInCampaign, ...], report: str | None) -> None:
    """Answer `findings show --json`."""
    answer(ShownServerFinding(finding=_listed(record), campaigns=campaigns, report=report))


def _listed(record: ServeRecord) -> ServerFinding:
    return ServerFinding(
        name=record.name,
        state=record.state.value,
        known=None,
        kind=record.fault.kind.value,
        message=record.fault.message,
        needs=record.needs,
        symptoms=record.symptoms,
        requests=len(record.trace.requests),
        path=str(record.path),
    )
