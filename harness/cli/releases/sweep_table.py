"""A sweep on a terminal: a table of releases and numbered failures, and below it a description of each failure."""

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.cli.terminal import new_table, print_line
from attnfuzz.harness.releases import words
from attnfuzz.harness.releases.outcomes import Ending
from attnfuzz.harness.releases.results import FailureRow, SweepResults
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import count, replay_line
from attnfuzz.kernels.interface.engine import Engine

_MARKS = {
    Ending.FAILS: Text("F", style="bold red"),
    Ending.PASSES: Text("."),
    Ending.FAILS_OTHERWISE: Text("?", style="yellow"),
    Ending.CANNOT_RUN: Text("-", style="dim"),
    Ending.CANNOT_BE_HAD: Text("-", style="dim"),
}
_LEGEND = "F fails, . passes, ? fails in another way, which may hide it, - can't be run"

_GAP = 2
_INDENT = "    "


def print_sweep(console: Console, last: Console, results: SweepResults, engine: Engine) -> None:
    """Print the table, the releases that could not be run, and each failure; on the `last` console the result."""
    passing, not_run = words.without_failure(results)
    waiting = words.not_yet_run(results)
    shown_apart = (*passing, *not_run, *waiting)
    numbered = list(enumerate((row for row in results.rows if row not in shown_apart), start=1))
    for part in _in_parts(console, results, numbered):
        console.print(_table(results, part))
        console.print()
    if numbered:
        console.print(Text(_LEGEND, style="dim"))
    for release in results.asked.releases:
        backends = tuple(engine.backend(release, kind) for kind in results.asked.kinds)
        if reason := words.unable(results, release, backends):
            print_line(console, f"{words.shown(release)} can't be run: {reason}", "yellow")
    for refusal in words.new_refusals(results):
        _wrapped(console, refusal)
    for number, row in numbered:
        console.print()
        _print_row(console, number, row)
    if shown_apart:
        console.print()
    if passing:
        _wrapped(console, f"No release shows {', '.join(row.wanted.name for row in passing)}.")
    if reasons := words.why_not_run(not_run):
        _wrapped(console, f"None could run {reasons}.")
    if waiting:
        _wrapped(console, f"Found, but not yet run in all releases: {', '.join(row.wanted.name for row in waiting)}.")
    console.print()
    _print_result(last, results)


def _in_parts(
    console: Console, results: SweepResults, numbered: Sequence[tuple[int, FailureRow]]
) -> list[Sequence[tuple[int, FailureRow]]]:
    """Split the failures into parts whose tables fit into the terminal."""
    names = max(map(len, (*map(words.shown, results.asked.releases), "release")))
    taken = names + (len("  drawn cases  found") if results.asked.searches else 0)
    each = max(1, (console.width - taken) // (_GAP + len(str(len(numbered)))))
    return [numbered[first : first + each] for first in range(0, max(1, len(numbered)), each)]


def _table(results: SweepResults, part: Sequence[tuple[int, FailureRow]]) -> Table:
    searches = ("drawn cases", "found") if results.asked.searches else ()
    numbers = (*searches, *(str(number) for number, _ in part))
    table = new_table("release", *numbers, whole=("release",), numbers=numbers)
    for release in results.asked.releases:
        searched = results.searched.get(release)
        found = (f"{searched.examples:,}", str(words.found_in(results, release))) if searched else ("", "")
        marks = [_MARKS[row.cells[release].ending] if release in row.cells else Text("") for _, row in part]
        table.add_row(printable(words.shown(release)), *(found if searches else ()), *marks)
    return table


def _print_row(console: Console, number: int, row: FailureRow) -> None:
    wanted = row.wanted
    print_line(console, f"{number:>2}  {wanted.name}, {wanted.kind}", "bold")
    lines = [wanted.title, words.sentence(row)]
    if wanted.found:
        lines.append(f"Found by the search in {', '.join(map(words.shown, wanted.found))}.")
    if row.resembles:
        lines.append(f"It fails in the same releases as {row.resembles}, so it may be that bug.")
    for line in lines:
        _wrapped(console, line, _INDENT)
    newest = next((cell for cell in reversed(row.cells.values()) if cell.case), None)
    if newest is not None:
        print_line(console, f"{_INDENT}{replay_line(newest.case)}")


def _print_result(console: Console, results: SweepResults) -> None:
    releases = count(len(results.asked.releases), "release")
    failing = sum(row.course.began != "-" for row in results.rows)
    left = words.still_there(results)
    if not results.judged:
        print_line(console, f"None of {releases} could be run.", "bold red")
    elif not failing:
        print_line(console, f"{releases}: none fails.", "bold green")
    else:
        names = f": {', '.join(row.wanted.name for row in left)}" if left else ""
        print_line(console, f"{releases}: {count(failing, 'failure')}, {len(left)} still there{names}.", "bold red")


def _wrapped(console: Console, text: str, indent: str = "") -> None:
    print_line(console, textwrap.fill(text, console.width - 1, initial_indent=indent, subsequent_indent=indent))
