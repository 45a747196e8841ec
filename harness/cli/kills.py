"""What `attnfuzz defects run` shows: a line while it runs, tables at its end."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.defects.results import DefectTally
from attnfuzz.harness.defects.search import Search, SearchOutcome
from attnfuzz.harness.verdict.wording import count


class Watch:
    """Follows `total` searches: on a terminal in one line that is drawn anew, elsewhere in a line for each."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._over = 0
        self._running: dict[int, Search] = {}
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to draw, on a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the line."""
        self._live.stop()

    def __call__(self, search: Search) -> None:
        """Follow a search of which there is news."""
        self._running[id(search)] = search
        if search.over:
            del self._running[id(search)]
            self._over += 1
            if not self._console.is_terminal:
                self._console.print(f"{self._over} of {self._total}: {_result(search.outcome)}", soft_wrap=True)

    def _draw(self) -> Text:
        searching = ", ".join(f"{search.defect.name} {search.cases:,}" for search in self._running.values())
        return Text(f"{self._over} of {self._total} searched; now {searching}", no_wrap=True, overflow="ellipsis")


def print_scores(console: Console, scores: Sequence[DefectTally]) -> None:
    """Print each defect's score below its layer, then how often each tier kills, then the result."""
    console.print()
    console.print(_table(scores))
    console.print()
    console.print(_by_killer(scores))
    console.print()
    for score in scores:
        if not score.killed:
            console.print(Text(f"Survives: {score.defect.name}: {score.defect.title}", style="red"))
    console.print(f"{sum(score.killed for score in scores)} of {len(scores)} killed", style="bold")


def _table(scores: Sequence[DefectTally]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("defect", no_wrap=True)
    table.add_column("killed by", overflow="fold")
    for title in ("examples", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for layer, members in groupby(scores, key=lambda score: score.defect.layer):
        table.add_row(Text(layer.value, style="bold"))
        for score in members:
            style = "" if score.killed else "red"
            examples, seconds = _numbers(score.examples, "{:,.0f}"), _numbers(score.seconds, "{:.1f}")
            table.add_row(f"  {score.defect.name}", _killed_by(score), examples, seconds, style=style)
    return table


def _killed_by(score: DefectTally) -> str:
    seeds = len(score.outcomes)
    words = " ".join(score.usual) if score.kills else "survives"
    share = f", {len(score.kills)} of {seeds} seeds" if score.kills and not score.killed else ""
    unconfirmed = f" ({score.unconfirmed} unconfirmed)" if score.unconfirmed else ""
    return f"{words}{share}{unconfirmed}"


def _numbers(median_and_worst: tuple[float, float], form: str) -> str:
    """The median; of several searches, with the worst in brackets."""
    median, worst = (form.format(number) for number in median_and_worst)
    return median if median == worst else f"{median} ({worst})"


def _by_killer(scores: Sequence[DefectTally]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("killed by")
    for title in ("first", "at all"):
        table.add_column(title, justify="right")
    kills = [kill for score in scores for kill in score.kills]
    first = Counter(kill.by for kill in kills)
    at_all = first + Counter(other for kill in kills for other in kill.also)
    for by, times in sorted(at_all.items()):
        table.add_row(by, f"{first[by]:,}", f"{times:,}")
    return table


def _result(outcome: SearchOutcome) -> str:
    after = f"after {count(outcome.examples, 'example')}, {outcome.seconds:.1f} s"
    if outcome.kill is None:
        return f"{outcome.defect} survives {after}"
    return f"{outcome.defect} killed by {outcome.kill.by} {outcome.kill.kind} {after}"
