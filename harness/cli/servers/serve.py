"""Running a campaign against a server for the command line, and showing its events."""

from pathlib import Path
from typing import Any

from attnfuzz.harness.cli.servers.answers import ServeAnswer, ServerFinding
from attnfuzz.harness.cli.signals import stop_on_signals
from attnfuzz.harness.cli.terminal import Exit, Terminal, answer, details, print_line
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.events import (
    AnyServeEvent,
    FloorMeasured,
    NoLongerDrawn,
    ServeChecked,
    ServeExplained,
    ServeFiled,
    ServerFound,
    ServerRestarted,
    ServeSuspect,
    ServeTrouble,
    ServeUnconfirmed,
)
from attnfuzz.harness.serve.ledger import DEFAULT_NAME
from attnfuzz.harness.serve.run import Served, resume_against, run_against
from attnfuzz.harness.serve.standing import ServeStanding
from attnfuzz.harness.serve.trace import describe_trace
from attnfuzz.harness.verdict.wording import clock, count


def start_serving(*, home: Path, ledger: Path | None, **given: Any) -> Exit:
    """Run a new campaign, print its result, and return its exit code. Raises UserError and OSError."""
    default = Path(DEFAULT_NAME)
    plan = ServePlan(out=home, ledger=ledger or (default if default.exists() else None), **given)
    with stop_on_signals() as stop:
        return _concluded(run_against(plan, (_show,), stop=stop))


def resume_serving(home: Path) -> Exit:
    """Continue the last campaign of `home`. Raises as `start_serving`."""
    with stop_on_signals() as stop:
        return _concluded(resume_against(home, (_show,), stop=stop))


def _show(event: AnyServeEvent) -> None:
    line = _line(event)
    if line:
        print_line(details(), f"{clock(event.at):>7}  {line}")
    if isinstance(event, ServeFiled):
        for text in describe_trace(event.trace).splitlines():
            print_line(details(), f"         {text}")
        print_line(details(), f"         python {event.path}/repro.py")


def _line(event: AnyServeEvent) -> str:
    match event:
        case ServerFound():
            return event.surface.words()
        case FloorMeasured():
            return event.floor.words
        case ServeSuspect():
            return f"a trace of {count(event.requests, 'request')} fails: {event.fault.message}"
        case ServeFiled():
            state = f"known: {event.known}" if event.known else event.state.value
            seen = f"{event.times} of {count(event.runs, 'run')}"
            tried = count(event.tried, "trace")
            return f"{event.fault.kind} ({state}), {seen}, minimized with {tried}: {event.fault.message}"
        case ServeExplained():
            return f"explained by {event.name}: it passes without what that finding needs, and fails with it alone"
        case ServeChecked():
            if event.state is State.FIXED:
                return f"{event.name}: fixed: it passed {count(event.runs, 'run')}"
            again = f"{'known' if event.known else event.state.value}, failed in run {event.runs}"
            return f"{event.name}: {again}: {event.fault.message}"
        case ServeUnconfirmed():
            return f"not confirmed in {count(event.runs, 'run')}, kept in {event.path}: {event.fault.message}"
        case NoLongerDrawn():
            ability = event.ability.value if event.ability else "aborts"
            return f"no longer drawn: {ability}, since {event.name} kills the server"
        case ServerRestarted():
            return f"the server is ready after {event.seconds:.0f} s ({event.why})"
        case ServeTrouble():
            return event.text
        case _:
            return ""


def _concluded(served: Served) -> Exit:
    standing = served.standing
    answer(serve_answer(served))
    console = Terminal()
    print_line(console, f"{standing.verdict}; {standing.busy_share:.0%} of the time with a running request.")
    for cause in standing.failing:
        if seen := standing.symptoms_of(cause.name):
            needs = ", ".join(cause.needs) or "only its requests"
            print_line(console, f"{cause.name} needs {needs}; symptoms: {seen}")
    for title in standing.remarks:
        print_line(console, f"The ledger's entry {title!r} matched nothing.")
    finished = standing.finished
    if finished is not None and finished.ended:
        print_line(console, f"Ended early: {finished.ended}")
    for path in served.reports:
        print_line(details(), f"Report: {path}")
    if finished is not None and finished.interrupted:
        return Exit.INTERRUPTED
    return Exit.CLEAN if standing.clean else Exit.FOUND


def serve_answer(served: Served) -> ServeAnswer:
    """Return a campaign in the form in which --json writes it."""
    standing = served.standing
    finished, started = standing.finished, standing.started
    return ServeAnswer(
        campaign=served.campaign,
        result=standing.verdict,
        clean=standing.clean,
        interrupted=finished is not None and finished.interrupted,
        ended="" if finished is None else finished.ended,
        server=None if standing.surface is None else standing.surface.words(),
        floor=None if standing.floor is None else standing.floor.allowed,
        seed=None if started is None else started.seed,
        seconds=standing.searched,
        traces=standing.traces,
        requests=standing.requests,
        tokens=standing.tokens,
        busy=standing.busy_share,
        restarts=len(standing.restarts),
        findings=_findings(standing),
        unconfirmed=tuple(each.path for each in standing.unconfirmed),
        reports=tuple(map(str, served.reports)),
    )


def _findings(standing: ServeStanding) -> tuple[ServerFinding, ...]:
    return tuple(
        ServerFinding(
            name=event.name,
            state="known" if event.known and event.state is not State.FIXED else event.state.value,
            known=event.known,
            kind=event.fault.kind.value,
            message=event.fault.message,
            needs=event.needs,
            symptoms=dict(standing.symptoms.get(event.name, {})),
            requests=len(event.trace.requests) if isinstance(event, ServeFiled) else None,
            path=event.path,
        )
        for event in standing.causes
    )
