"""The reports of a campaign against a server: an HTML page and JUnit XML, beside its log."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jinja2

from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.files.templates import environment_of
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.suites import Suite, Test
from attnfuzz.harness.serve.events import ServeChecked, ServeFiled
from attnfuzz.harness.serve.standing import MOST_ALIKE, ServeStanding
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import clock, count


def write_serve_reports(folder: Path, standing: ServeStanding) -> tuple[Path, ...]:
    """Write all reports, and return their paths. Raises OSError."""
    if standing.started is None:
        return ()
    html, junit = folder / "report.html", folder / "junit.xml"
    write_durably(html, render_serve_html(standing).encode())
    write_durably(junit, render_serve_junit(standing))
    return html, junit


def render_serve_html(standing: ServeStanding) -> str:
    """Render the page, which loads nothing."""
    return (
        _markup("attnfuzz.harness.serve")
        .get_template("serve.html.j2")
        .render(standing=standing, facts=dict(facts(standing)), count=count, clock=clock)
    )


def facts(standing: ServeStanding) -> Iterator[tuple[str, str]]:
    """Yield results and settings, as names and values."""
    started = standing.started
    if started is not None:
        yield "address", started.url
        yield "started by", started.start or "others"
        yield "concurrency", f"{started.concurrency}"
        yield "seed", f"{started.seed}"
    if standing.surface is not None:
        yield "server", standing.surface.words()
    if standing.floor is not None:
        yield "judged by", standing.floor.words
        yield "largest allowed difference over the floor", f"{standing.margin:.2g}"
    yield "traces", f"{standing.traces:,} in {clock(standing.searched)}"
    if standing.suspects:
        kinds = ", ".join(f"{kind.value} {number}" for kind, number in standing.suspects.items())
        yield "traces that failed", f"{kinds}; at most {MOST_ALIKE} of a kind are minimized, the others explained"
    if standing.not_examined:
        yield "of these not examined", f"{standing.not_examined:,}: no cause was found to explain them in time"
    yield "requests", f"{standing.requests:,}, {standing.tokens:,} tokens"
    yield "time with a running request", f"{standing.busy_share:.0%}"
    yield "tokens from the prefix cache", f"{standing.hits:,.0f}"
    yield "preemptions", f"{standing.preempted:,.0f}"
    restarts = sorted(each.seconds for each in standing.restarts)
    if restarts:
        yield "starts", f"{count(len(restarts), 'time')}, {restarts[0]:.0f} to {restarts[-1]:.0f} s"


def render_serve_junit(standing: ServeStanding) -> bytes:
    """Render a suite of the campaign, with a test for each cause."""
    started = standing.started
    assert started is not None
    suites = [Suite("attnfuzz serve", (_campaign_test(standing), *_finding_tests(standing)))]
    environment = dict(started.environment)
    if standing.surface is not None:
        environment["server"] = standing.surface.words()
    shown = SimpleNamespace(at=standing.at, environment=environment)
    settings = SimpleNamespace(campaign=started.campaign, seed=started.seed, attnfuzz=started.attnfuzz)
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started.time))
    template = _markup("attnfuzz.harness.report").get_template("junit.xml.j2")
    return template.render(standing=shown, started=settings, suites=suites, timestamp=timestamp).encode()


def _campaign_test(standing: ServeStanding) -> Test:
    finished = standing.finished
    if finished is None:
        return Test("campaign", "error", "still running, or killed: incomplete", "Unfinished", out=standing.verdict)
    if finished.ended or finished.interrupted:
        return Test(
            "campaign", "error", finished.ended or "stopped early: incomplete", "Unfinished", out=standing.verdict
        )
    remarks = [f"the ledger's entry matched nothing: {each}" for each in standing.remarks]
    return Test("campaign", out="\n".join([standing.verdict, *standing.troubles, *remarks]), seconds=standing.searched)


def _finding_tests(standing: ServeStanding) -> Iterator[Test]:
    for event in standing.causes:
        seen = standing.symptoms_of(event.name)
        script = "\n".join(filter(None, (f"python {event.path}/repro.py", seen and f"symptoms: {seen}")))
        if event.state is State.FIXED:
            passed = f", in {count(event.runs, 'run')}" if isinstance(event, ServeChecked) else ""
            yield Test(event.name, out=f"passes now{passed}")
        elif event.known is not None:
            yield Test(event.name, "skipped", f"known: {event.known}", out=script)
        else:
            text = event.report if isinstance(event, ServeFiled) else event.fault.message
            reason = f"{event.state}: {event.fault.message}"
            yield Test(event.name, "failure", reason, kind=event.fault.kind.value, text=text, out=script)
    for kept in standing.unconfirmed:
        reason = f"not confirmed in {kept.runs} runs: {kept.fault.message}"
        yield Test(f"unconfirmed {Path(kept.path).name}", "failure", reason, kind=kept.fault.kind.value)


@cache
def _markup(package: str) -> jinja2.Environment:
    return environment_of(
        package, autoescape=True, finalize=lambda each: printable(each) if isinstance(each, str) else each
    )
