"""`attnfuzz report` and `attnfuzz findings` in a home of `attnfuzz serve`, whose findings are traces."""

from pathlib import Path

from attnfuzz.harness.campaign.home import LOG_NAME, Home
from attnfuzz.harness.cli.answers import ServerFinding
from attnfuzz.harness.cli.serve import serve_answer
from attnfuzz.harness.cli.terminal import BadInput, Terminal, answer, details, print_line
from attnfuzz.harness.serve.findings import ServeRecord
from attnfuzz.harness.serve.log import is_serve_log, read_serve_log
from attnfuzz.harness.serve.reports import render_serve_html, render_serve_junit, write_serve_reports
from attnfuzz.harness.serve.run import Served
from attnfuzz.harness.serve.standing import ServeStanding


def is_serve_home(path: Path) -> bool:
    """Return whether the last campaign of a home, or the campaign with this folder or log, was against a server."""
    home = Home(path)
    log = home.log(ids[-1]) if (ids := home.ids()) else path / LOG_NAME if path.is_dir() else path
    return is_serve_log(log)


def refuse_serve_home(path: Path, instead: str) -> None:
    """Raise BadInput for a home of `attnfuzz serve`; `instead` is the remedy."""
    if is_serve_home(path):
        raise BadInput(f"{path} is a home of attnfuzz serve, whose campaigns have traces instead of cases: {instead}")


def report_serving(log: Path, *, html: Path | None, junit: Path | None) -> None:
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


def listed_of_server(record: ServeRecord) -> ServerFinding:
    """Return a finding in the form in which --json lists it."""
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
