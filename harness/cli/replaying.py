"""`attnfuzz replay` of a finding that comes and goes: under its conditions, as often as its failure rate requires."""

import contextlib
from pathlib import Path

from msgspec.structs import replace
from rich.text import Text

from attnfuzz.harness.cli.answers import ListedFailure, ReplayAnswer
from attnfuzz.harness.cli.terminal import Exit, Terminal, answer, details, print_line, tell
from attnfuzz.harness.export import Exporter
from attnfuzz.harness.findings.record import Record, RecordError, read_history, read_record
from attnfuzz.harness.sandbox.again import ShownAgain, show_again
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.verdict.recurrence import MOST_SECONDS, SHOWN, Recurrence, percent
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase


class Recurring:
    """A finding on file that does not always fail."""

    def __init__(self, record: Record, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        self._record = record

    def show(self, case: Case, runner: Runner, times: int | None) -> ShownAgain:
        """Run `case`, the finding's on any backend, until it fails, or `times` times."""
        found_on = self._record.case.backend
        before = [
            replace(each, backend=case.backend) if each.backend == found_on else each for each in self._record.before
        ]
        tell(self.recurrence.words)
        if times is None:
            tell(self._plan)
        return show_again(
            runner, case, self._record.observation, self.recurrence, before, seconds=MOST_SECONDS, times=times
        )

    def exporter(self, case: AnyCase) -> Exporter:
        """Return the exporter that makes its scripts. Raises CannotExport."""
        return Exporter(case, failed=self._record.observation, recurrence=self.recurrence)

    @property
    def _plan(self) -> str:
        limit = f"or for {MOST_SECONDS} s; --repeat sets another number."
        if self.recurrence.seen_once:
            return f"Running it several times, {limit}"
        runs = count(self.recurrence.runs_to_show, "time")
        return f"Running it until it fails, up to {runs} (which is {percent(SHOWN)} certain to show it), {limit}"


def recurring_at(path: Path) -> Recurring | None:
    """The finding in the folder `path`, if it comes and goes. Raises RecordError for one with files missing."""
    recurrence = None
    with contextlib.suppress(RecordError):
        # A folder with a case alone is a case.
        recurrence = read_history(path).recurrence
    return None if recurrence is None else Recurring(read_record(path), recurrence)


def print_shown(path: Path, case: Case, shown: ShownAgain) -> Exit:
    """Print how often it failed, and return the exit code: one failure is enough."""
    console = Terminal()
    answer(
        ReplayAnswer(
            path=str(path),
            backend=case.backend,
            fails=shown.failed > 0,
            runs=shown.runs,
            failed=shown.failed,
            conclusive=shown.conclusive,
            failures=tuple(map(ListedFailure.of, shown.verdict.failures if shown.verdict is not None else ())),
        )
    )
    runs = count(shown.runs, "run")
    if shown.verdict is not None:
        details().print(Text(f"{render_failure(case, shown.verdict).rstrip()}\n"))
        print_line(console, f"{path} still fails on {case.backend}: {shown.failed:,} of {runs} failed.", "bold red")
        return Exit.FOUND
    text = f"{path} passes on {case.backend}: none of {runs} failed."
    if not shown.conclusive:
        text += f" There was no time for the {shown.wanted:,} that would show it."
    print_line(console, text, "bold green" if shown.conclusive else "bold yellow")
    return Exit.CLEAN
