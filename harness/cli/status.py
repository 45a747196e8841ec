"""The status of a campaign, drawn for a terminal of any width."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.capabilities import capability_of
from attnfuzz.harness.campaign.events import SliceStarted
from attnfuzz.harness.campaign.standing import Standing, TimelinePoint
from attnfuzz.harness.family import family_with
from attnfuzz.harness.search.messages import SliceKind
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.strategies.coverage import Pair

GAP = 2
"""Columns of a terminal between two columns of a table."""

NARROWEST_NAME = 12
"""Minimum width of a backend's name in columns."""

TREND_POINTS = 24
BARS = "▁▂▃▄▅▆▇█"


class Status:
    """A campaign at `at` seconds, while it runs: the budget, the pace, and a line for each backend."""

    def __init__(self, standing: Standing, *, at: float) -> None:
        self._standing = standing
        self._at = at

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that never wrap."""
        width = options.max_width
        yield from self._budget(width)
        found = self._last("new finding", self._standing.finding_at)
        if self._standing.findings:
            found += f": {found_so_far(self._standing)}"
        yield _line(f"{self._last('new coverage', self._standing.coverage_at)}, {found}")
        yield _line(self._pace(trend="" if options.ascii_only else trend(self._standing.timeline)))
        yield Text()
        yield score_table(self._standing, width=width, live=True)

    def _budget(self, width: int) -> Iterator[Table | Text]:
        started = self._standing.started
        if started is None:
            yield _line("Starting")
            return
        if started.seconds is not None:
            done, total = min(self._at, started.seconds), started.seconds
            words = f"{clock(self._at)} of {clock(total)}, {clock(total - done)} left"
        else:
            each = started.examples or 0
            done = sum(min(score.tally.searched, each) for score in self._standing.scores.values())
            total = each * len(started.backends)
            words = f"{done:,} of {count(total, 'case')}, {clock(self._at)}"
            if done:
                words += f", about {clock(self._at * (total - done) / done)} left"
        line = Table.grid(padding=(0, GAP, 0, 0), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        room = width - len(words) - GAP
        if room < NARROWEST_NAME:
            yield _line(words)
            return
        line.add_row(ProgressBar(total=total, completed=done, width=room), words)
        yield line

    def _last(self, event: str, at: float | None) -> str:
        return f"no {event} yet" if at is None else f"last {event} {clock(max(0.0, self._at - at))} ago"

    def _pace(self, trend: str) -> str:
        standing = self._standing
        restarted = len(standing.restarted_jobs)
        jobs = count(standing.started.jobs if standing.started else 0, "job")
        doing = _doing(standing, standing.running.values())
        parts = [f"{jobs} ({doing})" if doing else jobs]
        if restarted:
            parts.append(count(restarted, "restart"))
        if standing.awaited:
            parts.append(f"waiting {clock(self._at - min(standing.awaited.values()))} for a case")
        parts.append(f"{recent_rate(standing):,.0f} runs/s now {trend}".rstrip())
        return ", ".join(parts)


def score_table(standing: Standing, *, width: int, live: bool) -> Table:
    """Return the scores of all backends, without the least important columns if `width` is too small.

    `live` adds the current activity of the jobs.
    """
    scores = standing.scores
    columns = {
        "cases": [Text(f"{score.tally.searched:,}") for score in scores.values()],
        "runs/s": [Text(f"{standing.rate(score.tally.cases):,.0f}") for score in scores.values()],
        "coverage": [Text(coverage(standing, backend)) for backend in scores],
        "pairs": [Text(_pairs(standing, backend)) for backend in scores],
        "deaths": [Text(f"{score.tally.deaths:,}") for score in scores.values()],
        "findings": [_findings(standing, backend) for backend in scores],
    }
    if live:
        tasks = standing.running.values()
        doing = (_doing(standing, [task for task in tasks if task.backend == backend]) for backend in scores)
        columns["now"] = [Text(each, style="dim") for each in doing]
    longest = max(map(len, ("backend", *scores)))
    for expendable in ("pairs", "now", "deaths"):
        if longest + _total(columns) > width:
            columns.pop(expendable, None)
    if NARROWEST_NAME + _total(columns) > width:
        del columns["runs/s"]
    room = max(NARROWEST_NAME, width - _total(columns))
    # The end of a path is more informative than its beginning.
    names = [Text(name if len(name) <= room else f"…{name[1 - room :]}") for name in scores]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for title in ("backend", *columns):
        table.add_column(title, justify="left" if title in {"backend", "now"} else "right", no_wrap=True)
    for row in zip(names, *columns.values(), strict=True):
        table.add_row(*row)
    return table


def found_so_far(standing: Standing) -> str:
    """Return the numbers of causes and findings that fail now: 3 causes (5 findings)."""
    causes, findings = len(standing.causes), len(standing.findings)
    found = count(findings, "finding")
    return found if causes == findings else f"{count(causes, 'cause')} ({found})"


def reached_share(standing: Standing, backend: str) -> float | None:
    """Return the share of the reachable pairs that was reached; None if they are unknown."""
    possible = _possible(standing, backend)
    return len(standing.score(backend).pairs & possible) / len(possible) if possible else None


def coverage(standing: Standing, backend: str) -> str:
    """Return the share of the reachable pairs that was reached, rounded down: 100% is all of them."""
    possible = _possible(standing, backend)
    return f"{100 * len(standing.score(backend).pairs & possible) // len(possible)}%" if possible else "-"


def recent_rate(standing: Standing, seconds: float = 60.0) -> float:
    """Return runs per second over the minute before the last event, or over the whole campaign if it is shorter."""
    since = next((sample for sample in reversed(standing.timeline) if standing.at - sample.at >= seconds), None)
    if since is None:
        return standing.rate(standing.runs)
    return (standing.runs - since.runs) / (standing.at - since.at)


def trend(timeline: Sequence[TimelinePoint]) -> str:
    """Return runs per second since the start as a row of bars; empty for fewer than 3 of them."""
    stride = max(1, -(-len(timeline) // TREND_POINTS))
    points = timeline[::stride]
    rates = [
        (later.runs - earlier.runs) / (later.at - earlier.at)
        for earlier, later in pairwise(points)
        if later.at > earlier.at
    ]
    most = max(rates, default=0.0)
    if len(rates) < 3 or not most:
        return ""
    return "".join(BARS[round(max(0.0, rate) / most * (len(BARS) - 1))] for rate in rates)


def _line(words: str) -> Text:
    return Text(words, no_wrap=True, overflow="ellipsis")


def _pairs(standing: Standing, backend: str) -> str:
    possible, reached = _possible(standing, backend), standing.score(backend).pairs
    if not possible:
        return f"{len(reached):,} of ?" if reached else "-"
    return f"{len(reached & possible):,} of {len(possible):,}"


def _possible(standing: Standing, backend: str) -> frozenset[Pair]:
    """Return the pairs of features that a backend can reach; none if its log has no capability."""
    can = capability_of(standing.started, backend)
    return frozenset() if can is None else family_with(can).possible_pairs(can)


def _findings(standing: Standing, backend: str) -> Text:
    """Return the number of findings that the ledger does not list, in red, and of those that it lists."""
    here = [finding for finding in standing.findings if finding.case.backend == backend]
    unexpected = sum(finding.known is None for finding in here)
    known = f" + {len(here) - unexpected} known" if unexpected < len(here) else ""
    return Text.assemble((str(unexpected), "bold red" if unexpected else ""), known)


def _doing(standing: Standing, tasks: Collection[SliceStarted]) -> str:
    """Return the activities of the jobs with these slices: "searching", or "1 replaying, 2 searching"."""
    verbs = Counter(_verb(standing, task) for task in tasks)
    if len(tasks) == 1:
        return "".join(verbs)
    return ", ".join(f"{number} {verb}" for verb, number in sorted(verbs.items()))


def _verb(standing: Standing, task: SliceStarted) -> str:
    if standing.score(task.backend).tally.shrinking:
        return "shrinking"
    return _VERBS[task.kind]


_VERBS = {
    SliceKind.DRAWN: "searching",
    SliceKind.KEPT: "replaying",
    SliceKind.ONCE_MORE: "confirming",
    SliceKind.COMPARED: "comparing",
    SliceKind.MINIMIZED: "minimizing",
    SliceKind.SCRIPTED: "writing scripts",
}


def _total(columns: Mapping[str, Sequence[Text]]) -> int:
    """Return the width of the columns, each with the gap before it."""
    return sum(GAP + max([len(title), *(cell.cell_len for cell in cells)]) for title, cells in columns.items())
