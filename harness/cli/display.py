"""How a running campaign looks: a status that follows it on a terminal, now and then a line elsewhere."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from attnfuzz.harness.campaign.events import (
    Event,
    FindingChecked,
    FindingFiled,
    GapSeen,
    JobRestarted,
    SuspectSeen,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.status import Status, coverage, recent_rate
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import clock, count, headline

FIRST_MINUTE = 60.0
SECONDS_PER_LINE_AT_FIRST = 10.0
SECONDS_PER_LINE = 60.0


class Display(Protocol):
    """Shows a campaign while it runs: a context manager and a handler of its events."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        ...

    def __call__(self, event: Event) -> None:
        """Show `event`."""
        ...


def display_on(console: Console, standing: Standing) -> Display:
    """What suits the console."""
    return LiveStatus(console, standing) if console.is_terminal else LineDisplay(console, standing)


class LiveStatus:
    """The status, drawn anew four times a second, below a line for each failure."""

    def __init__(self, console: Console, standing: Standing) -> None:
        self._console = console
        self._standing = standing
        self._heard = time.monotonic()
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the status."""
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Print a line if something failed; the status follows by itself."""
        self._heard = time.monotonic()
        say(self._console, event)

    def _draw(self) -> Status:
        # Between two events, time goes on.
        at = self._standing.at + time.monotonic() - self._heard
        return Status(self._standing, at=at)


class LineDisplay:
    """A line every ten seconds in the first minute, then one a minute, and one for each failure."""

    def __init__(self, console: Console, standing: Standing) -> None:
        self._console = console
        self._standing = standing
        self._next = standing.at + SECONDS_PER_LINE_AT_FIRST
        self._patient_from = standing.at + FIRST_MINUTE

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

    def __call__(self, event: Event) -> None:
        """Print a line if something failed or it is time for one."""
        say(self._console, event)
        if event.at >= self._next:
            every = SECONDS_PER_LINE_AT_FIRST if event.at < self._patient_from else SECONDS_PER_LINE
            self._next = event.at + every
            self._console.print(Text(f"{clock(event.at)}: {self._words()}"), soft_wrap=True)

    def _words(self) -> str:
        standing = self._standing
        reached = (f"{name} {coverage(standing, name)}" for name in standing.scores)
        findings = len(standing.findings)
        found = f". {count(findings, 'finding')}" if findings else ""
        pace = f"{count(standing.cases, 'case')}, {recent_rate(standing):,.0f}/s now"
        return f"{pace}. Coverage: {', '.join(reached)}{found}"


def say(console: Console, event: Event) -> None:
    """Print the line for an event that is about a failure, or about what surrounds the campaign."""
    match event:
        case FindingFiled() | FindingChecked():
            line = Text.assemble(_label(event), f": {headline(event.case.backend, event.observation)}")
        case SuspectSeen():
            line = Text(f"Suspect: {headline(event.case.backend, event.observation)}")
        case UnconfirmedKept():
            line = Text(f"Unconfirmed: {headline(event.case.backend, event.observation)}")
        case GapSeen():
            line = Text(f"Gap: {headline(event.case.backend, event.observation)}")
        case Trouble():
            line = Text(f"Trouble: {printable(event.text)}")
        case JobRestarted():
            line = Text(f"Job {event.job} was started anew: {printable(event.text)}")
        case _:
            return
    console.print(Text.assemble(f"{clock(event.at)}: ", line), soft_wrap=True)


def _label(finding: FindingFiled | FindingChecked) -> tuple[str, str]:
    if finding.state is State.FIXED:
        return "Fixed", "bold green"
    if finding.known is not None:
        return "Known finding", ""
    return {
        State.NEW: "Finding",
        State.RETURNED: "Finding that returned",
        State.OPEN: "Finding that is open",
    }[finding.state], "bold red"
