"""How a running campaign looks: a table that follows it on a terminal, now and then a line elsewhere."""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from attnfuzz.harness.campaign.events import Event, FindingFiled, GapSeen, SuspectSeen, UnconfirmedKept
from attnfuzz.harness.cli.scoreboard import Scoreboard
from attnfuzz.harness.cli.wording import clock, headline

SECONDS_PER_LINE = 5.0


def table(board: Scoreboard) -> Table:
    """The scores of all backends."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("backend", overflow="fold")
    for title in ("cases", "cases/s", "deaths", "findings"):
        result.add_column(title, justify="right", no_wrap=True)
    for backend, score in board.scores.items():
        findings = f"[bold red]{score.findings}[/]" if score.findings else "0"
        result.add_row(backend, f"{score.cases:,}", f"{board.rate(score.cases):,.0f}", f"{score.deaths:,}", findings)
    return result


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


def display_on(console: Console, board: Scoreboard) -> Display:
    """What suits the console."""
    return LiveTable(console, board) if console.is_terminal else Lines(console, board)


class LiveTable:
    """A table that is drawn anew four times a second, below a line for each failure."""

    def __init__(self, console: Console, board: Scoreboard) -> None:
        self._console = console
        self._board = board
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the table."""
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Print a line if something failed; the table follows by itself."""
        say(self._console, event)

    def _draw(self) -> Table:
        drawn = table(self._board)
        shrinking = [backend for backend, score in self._board.scores.items() if score.shrinking]
        drawn.caption = clock(self._board.elapsed) + (f", shrinking a failure of {shrinking[0]}" if shrinking else "")
        drawn.caption_justify = "left"
        return drawn


class Lines:
    """A line every few seconds, and one for each failure."""

    def __init__(self, console: Console, board: Scoreboard) -> None:
        self._console = console
        self._board = board
        self._next = SECONDS_PER_LINE

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

    def __call__(self, event: Event) -> None:
        """Print a line if something failed or a few seconds have passed."""
        say(self._console, event)
        if event.at >= self._next:
            self._next = event.at + SECONDS_PER_LINE
            counts = ", ".join(f"{backend} {score.cases:,}" for backend, score in self._board.scores.items())
            self._console.print(f"{clock(event.at)}: {counts} cases, {self._board.rate(self._board.cases):,.0f}/s")


def say(console: Console, event: Event) -> None:
    """Print the line for an event that is about a failure."""
    match event:
        case SuspectSeen():
            words = "Suspect: {}"
        case FindingFiled():
            words = "[bold red]Finding[/]: {}"
        case UnconfirmedKept():
            words = "Unconfirmed: {}"
        case GapSeen():
            words = "Gap: {}"
        case _:
            return
    line = words.format(headline(event.case.backend, event.observation))
    console.print(f"{clock(event.at)}: {line}", soft_wrap=True)
