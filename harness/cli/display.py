"""A campaign as it is shown: a live status on a terminal, lines elsewhere, and a summary at its end."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign import events
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.status import GAP, Status, coverage, found_so_far, recent_rate, score_table
from attnfuzz.harness.cli.terminal import extras, is_quiet, new_table, print_line, print_sentences
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import KNOWN, CauseView, cause_views
from attnfuzz.harness.report.files import scripts_in
from attnfuzz.harness.report.titles import title_of
from attnfuzz.harness.report.verdict import Level, ledger_lines, left_out_lines, verdict
from attnfuzz.harness.verdict.printable import in_a_line, printable
from attnfuzz.harness.verdict.wording import clock, count, replay_line

FIRST_MINUTE = 60.0
SECONDS_PER_LINE_AT_FIRST = 10.0
SECONDS_PER_LINE = 60.0

_WIDTH_OF_A_RULE = 80
_MOST_BACKENDS_IN_A_LINE = 6
"""Maximum number of backends for which a line shows the coverage of each."""

_MOST_SYMPTOMS = 12
"""Maximum number of rows of a cause's table of symptoms."""

_MOST_MESSAGES = 5
"""Maximum number of "unsupported" messages listed for a backend."""


@contextmanager
def display_on(console: Console, standing: Standing) -> Iterator[Callable[[events.Event], None]]:
    """Show a campaign while it runs, live on a terminal and in lines elsewhere. Yields a handler of its events."""
    if not console.is_terminal:
        yield _Lines(console, standing)
        return
    status = _LiveStatus(console, standing)
    if console.quiet:
        yield status
        return
    with Live(console=console, get_renderable=status.draw, refresh_per_second=4, transient=True):
        yield status


class _LiveStatus:
    """A status that is redrawn four times a second, below a line for each failure."""

    def __init__(self, console: Console, standing: Standing) -> None:
        self._console = console
        self._standing = standing
        self._updated = time.monotonic()

    def __call__(self, event: events.Event) -> None:
        """Print a line if something failed. The status is redrawn independently."""
        self._updated = time.monotonic()
        say(self._console, event)

    def draw(self) -> Status:
        # Time passes between two events.
        at = self._standing.at + time.monotonic() - self._updated
        return Status(self._standing, at=at)


class _Lines:
    """A line every ten seconds in the first minute, then one a minute, and one for each failure."""

    def __init__(self, console: Console, standing: Standing) -> None:
        self._console = console
        self._standing = standing
        self._next = standing.at + SECONDS_PER_LINE_AT_FIRST
        self._patient_from = standing.at + FIRST_MINUTE

    def __call__(self, event: events.Event) -> None:
        """Print a line if something failed or it is time for one."""
        say(self._console, event)
        if event.at >= self._next:
            every = SECONDS_PER_LINE_AT_FIRST if event.at < self._patient_from else SECONDS_PER_LINE
            self._next = event.at + every
            self._console.print(Text(f"{clock(event.at)}: {self._words()}"), soft_wrap=True)

    def _words(self) -> str:
        standing = self._standing
        found = f". {found_so_far(standing)}" if standing.findings else ""
        pace = f"{count(standing.cases, 'case')}, {recent_rate(standing):,.0f} runs/s now"
        waiting = f", waiting {clock(standing.waiting)} for a case" if standing.awaited else ""
        coverages = _coverages(standing)
        return f"{pace}{waiting}{f'. Coverage: {coverages}' if coverages else ''}{found}"


def _coverages(standing: Standing) -> str:
    """Return the coverage of each backend, or the lowest and the highest of many, or "" if none is known."""
    reached = [(coverage(standing, name), name) for name in standing.scores]
    if all(share == "-" for share, _ in reached):
        return ""
    if len(reached) <= _MOST_BACKENDS_IN_A_LINE:
        return ", ".join(f"{name} {share}" for share, name in reached)
    percent = sorted(int(share.removesuffix("%")) for share, _ in reached if share != "-")
    between = f"{percent[0]}% to {percent[-1]}%" if percent else "-"
    return f"{between} of {len(reached)} backends"


def say(console: Console, event: events.Event) -> None:
    """Print a line for an event about a failure or a problem; with --verbose, also for a slice that ended."""
    match event:
        case events.SliceFinished():
            size = f"{count(event.examples, 'case')}, {count(event.cases, 'run')}"
            line = Text(f"{event.backend}: {event.kind} slice of {size} in {event.seconds:.1f} s")
            console = extras()
        case events.FindingFiled() | events.FindingChecked():
            same = f", same cause as {in_a_line(event.cause)}" if event.cause else ""
            line = Text.assemble(_label(event), f": {title_of(event, event.needs, event.recurrence)}{same}")
        case events.FindingMinimized():
            line = Text(f"Minimized: {title_of(event.finding, event.finding.needs)}")
        case events.CausesMerged():
            line = Text(f"Same cause: {in_a_line(event.name)} and {in_a_line(event.cause)}")
        case events.SuspectSeen() | events.UnconfirmedKept() | events.GapSeen():
            line = Text(f"{_LABELS[type(event)]}: {title_of(event)}")
        case events.Trouble():
            line = Text(f"Trouble: {printable(event.text)}")
        case events.JobRestarted():
            line = Text(f"Job {event.job} was restarted: {printable(event.text)}")
        case _:
            return
    # A terminal wraps in the middle of words.
    console.print(Text.assemble(f"{clock(event.at)}: ", line), soft_wrap=not console.is_terminal)


def _label(finding: events.AnyFinding) -> tuple[str, str]:
    if finding.state is State.FIXED:
        return "Fixed", "bold green"
    if finding.known is not None:
        return "Known finding", ""
    return {
        State.NEW: "Finding",
        State.RETURNED: "Returned finding",
        State.OPEN: "Open finding",
    }[finding.state], "bold red"


_LABELS = {events.SuspectSeen: "Suspect", events.UnconfirmedKept: "Unconfirmed", events.GapSeen: "Gap"}


def summarise(console: Console, home: Home | None, standing: Standing) -> None:
    """Print the causes that the ledger does not list, with lines that run them, then the scores, then the result.

    `home` is where the findings are, to check whether they have scripts.
    """
    if not is_quiet():
        _print_causes_and_scores(console, home, standing)
    result = verdict(standing)
    seed = f" (seed {standing.started.seed})" if standing.started else ""
    print_sentences(console, f"{result.text}{seed}.", "bold green" if result.level is Level.GOOD else "bold red")


def _print_causes_and_scores(console: Console, home: Home | None, standing: Standing) -> None:
    views = cause_views(standing, scripts_in(home))
    unexpected = [view for view in views if view.triage is not None]
    width = console.width if console.is_terminal else min(console.width, _WIDTH_OF_A_RULE)
    for number, view in enumerate(unexpected, start=1):
        several = f": {count(view.failures, 'failure')}" if view.symptoms else ""
        title = f"{'Cause' if several else 'Finding'} {number} of {len(unexpected)}, {view.status}{several}"
        if view.heading:
            console.print(Rule(view.heading, style="red", characters="="), width=width)
        console.print(Rule(title, style="red", characters="-"), width=width)
        _print_cause(console, view)
    if unexpected:
        console.print(Rule(style="red", characters="-"), width=width)
    console.print(score_table(standing, width=console.width, live=False))
    for line in _others(standing, views):
        print_sentences(console, line)


def _print_cause(console: Console, view: CauseView) -> None:
    """Print the smallest case in full, the facts, the symptoms, and the lines that run it."""
    console.print(Text(view.headline, style="bold"))
    console.print(Text(printable(_at_length(view.finding))))
    about = Table.grid(padding=(0, GAP, 0, 0))
    about.add_column(no_wrap=True)
    about.add_column(overflow="fold")
    for name, value in view.facts:
        about.add_row(name, Text(value))
    if view.facts:
        console.print()
        console.print(about)
    groups = view.symptom_groups
    if len(groups) > 1:
        table = new_table("failure", "backends", "modes")
        for group in groups[:_MOST_SYMPTOMS]:
            table.add_row(*(Text(in_a_line(cell)) for cell in group))
        console.print()
        console.print(table)
        if (more := len(groups) - _MOST_SYMPTOMS) > 0:
            console.print(Text(f"and {more} more: see the report"))
    print_line(console, "".join(f"\n  {line}" for line in view.reproducers) + "\n")


def _at_length(finding: events.AnyFinding) -> str:
    """Return the report of a finding of this campaign; a line for one of an earlier campaign, which printed it."""
    if isinstance(finding, events.FindingFiled):
        return finding.report.rstrip()
    times = f"{finding.times} of {count(finding.runs, 'run')}"
    return f"found by an earlier campaign; failed in {times} of this one"


def _others(standing: Standing, views: Sequence[CauseView]) -> Iterator[str]:
    """Yield a line for each cause that needs no action, and for each event that is not a finding."""
    for view in views:
        replay = replay_line(view.finding.path)
        if view.status == KNOWN:
            yield f"Known: {view.title}: {view.cause.known}. {replay}"
        elif view.status == State.FIXED:
            yield f"Fixed: {view.title}: passes now. {replay}"
    for kept in standing.unconfirmed:
        yield f"Unconfirmed: {title_of(kept)}: {kept.reason}. Kept in {kept.path}"
    for gap in standing.gaps:
        yield f"Gap: {title_of(gap)}: {gap.observation.message}"
    for backend, score in standing.scores.items():
        for message, times in score.unsupported.most_common(_MOST_MESSAGES):
            yield f"Unsupported by {backend}, {count(times, 'time')}: {message}"
    yield from (f"Left out: {line}" for line in left_out_lines(standing.started))
    yield from (f"Ledger: {line}" for line in ledger_lines(standing.remarks))
