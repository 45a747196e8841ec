"""A sweep's table as markdown, with what each failure is and when it began and ended."""

from functools import partial

from attnfuzz.harness.report.markdown import template
from attnfuzz.harness.sweep.results import FailureRow, SweepResults
from attnfuzz.harness.sweep.words import ENDED, budget, found_in, sentence, shown, unable
from attnfuzz.kernels.engine import Engine

MARKDOWN = "sweep.md"


def render_markdown(results: SweepResults, engine: Engine) -> str:
    """The sweep as markdown."""
    return template("sweep.md.j2").render(
        results=results,
        shown=shown,
        cell=_cell,
        sentence=sentence,
        budget=budget(results.asked),
        found_in=partial(found_in, results),
        unable=lambda release: unable(
            results, release, tuple(engine.backend(release, kind) for kind in results.asked.kinds)
        ),
    )


def _cell(row: FailureRow, release: str) -> str:
    cell = row.cells.get(release)
    return "" if cell is None else ENDED.get(cell.ending, "-")
