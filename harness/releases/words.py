"""Texts about a sweep for the terminal and the markdown file, and that file."""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path

from attnfuzz.harness.releases.outcomes import Ending, in_words
from attnfuzz.harness.releases.results import FailureRow, SweepPlan, SweepResults
from attnfuzz.harness.report.markdown import template
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.kernels.interface.engine import Engine

MARKDOWN = "sweep.md"


def shown(release: str) -> str:
    """Shorten a release for a table: a source tree to its folder's name."""
    mark = release.find("@")
    return release if mark < 0 else f"{release[:mark]}@{Path(release[mark + 1 :]).name}"


def sentence(row: FailureRow) -> str:
    """Say when a failure began and ended."""
    if not row.cells:
        return "Found by a search, and not run in any release yet."
    if Ending.FAILS_OTHERWISE in _ends(row) and not _ends(row) & {Ending.FAILS, Ending.PASSES}:
        return "Unknown: every release that could be run fails in another way."
    return in_words({shown(release): outcome for release, outcome in row.cells.items()})


def budget(asked: SweepPlan) -> str:
    """Describe the budget of each release's search."""
    if asked.examples is not None:
        return f"{count(asked.examples, 'example')} of each backend"
    return clock(asked.seconds or 0)


def found_in(results: SweepResults, release: str) -> int:
    """Count the failures that the search of a release found."""
    return sum(release in row.wanted.found for row in results.rows)


def new_refusals(results: SweepResults) -> list[str]:
    """Return a sentence for each reason that a searched release gives to refuse cases, and the one before it does not.

    Nothing judges a refused case, so a release that wrongly refuses some has no failure.
    """
    searched = [(each, results.searched[each]) for each in results.asked.releases if each in results.searched]
    return [
        f"{shown(release)} refuses {count(times, 'drawn case')}, {shown(before)} none: {reason}"
        for (before, earlier), (release, later) in pairwise(searched)
        if earlier.cases and not earlier.interrupted
        for reason, times in sorted(later.refused.items(), key=lambda each: -each[1])
        if reason not in earlier.refused
    ]


def unable(results: SweepResults, release: str, backends: tuple[str, ...]) -> str:
    """Return the reasons why backends of a release could not be run, "" if all could."""
    reasons = {name: results.unable[name] for name in backends if name in results.unable}
    searched = results.searched.get(release)
    lines = list(dict.fromkeys(reasons.values())) if len(reasons) == len(backends) else []
    lines = lines or [f"{name}: {reason}" for name, reason in reasons.items()]
    return "; ".join([*lines, *([searched.failure] if searched and searched.failure else [])])


def without_failure(results: SweepResults) -> tuple[list[FailureRow], list[FailureRow]]:
    """Return the rows without a failure in any release: those that pass somewhere, and those that could not be run."""
    quiet = [row for row in results.rows if row.cells and not _ends(row) & {Ending.FAILS, Ending.FAILS_OTHERWISE}]
    passing = [row for row in quiet if Ending.PASSES in _ends(row)]
    return passing, [row for row in quiet if row not in passing]


def not_yet_run(results: SweepResults) -> list[FailureRow]:
    """Return the rows found before an interruption and not run yet."""
    return [row for row in results.rows if not row.cells]


def why_not_run(rows: Iterable[FailureRow]) -> str:
    """List failures that could not be looked for, by reason, except in releases that could not be run at all."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        reason = next((cell.line for cell in row.cells.values() if cell.ending is Ending.CANNOT_RUN), "")
        if reason:
            by_reason.setdefault(reason, []).append(row.wanted.name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def still_there(results: SweepResults) -> list[FailureRow]:
    """Return the rows that fail in the newest release that could be judged."""
    return [row for row in results.rows if row.course.still_there]


def _ends(row: FailureRow) -> set[Ending]:
    return {cell.ending for cell in row.cells.values()}


ENDED = {
    Ending.PASSES: "passes",
    Ending.FAILS: "**fails**",
    Ending.FAILS_OTHERWISE: "fails otherwise",
}
"""Cells of the table; others are a dash, with the reason below."""


def render_markdown(results: SweepResults, engine: Engine) -> str:
    """Render the sweep as markdown."""
    return template("sweep.md.j2").render(
        results=results,
        shown=shown,
        cell=_cell,
        sentence=sentence,
        budget=budget(results.asked),
        found_in=partial(found_in, results),
        refusals=new_refusals(results),
        unable=lambda release: unable(
            results, release, tuple(engine.backend(release, kind) for kind in results.asked.kinds)
        ),
    )


def _cell(row: FailureRow, release: str) -> str:
    cell = row.cells.get(release)
    return "" if cell is None else ENDED.get(cell.ending, "-")
