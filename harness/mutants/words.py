"""The table of a run of mutants as markdown: each mutant's line and change beside its fate."""

import os.path
from collections.abc import Iterator

from attnfuzz.harness.mutants.results import DETECTED, Fate, MutantOutcome, MutantResults
from attnfuzz.harness.verdict.wording import count

MARKDOWN = "mutants.md"

_ORDER = (Fate.SURVIVED, Fate.REFUSES, Fate.SAME_PLANS, *(each for each in Fate if each in DETECTED), Fate.NOT_MADE)
"""The mutants to read come first."""


def in_order(results: MutantResults) -> list[MutantOutcome]:
    """Return the outcomes, those to read first, each fate by file and line."""
    return sorted(results.outcomes, key=lambda each: (_ORDER.index(each.fate), each.mutant))


def at(results: MutantResults, outcome: MutantOutcome) -> str:
    """Return the line of a mutant as FILE:LINE, below the root of the code."""
    return f"{os.path.relpath(outcome.mutant.file, results.asked.root)}:{outcome.mutant.line}"


def change(outcome: MutantOutcome) -> str:
    """Return the change of a mutant."""
    return f"{outcome.mutant.before} → {outcome.mutant.after or 'nothing'}"


def fate(outcome: MutantOutcome) -> str:
    """Return the fate of a mutant, and the failure that showed it."""
    if outcome.kind:
        kind = outcome.kind if not outcome.place else f"{outcome.kind} at {outcome.place}"
        return f"{outcome.fate}: {kind}, {count(outcome.number, 'example')}"
    first = f", first {outcome.difference}" if outcome.difference else ""
    declined = f", {outcome.refused} refused: {outcome.message}" if outcome.refused else ""
    return f"{outcome.fate}: {outcome.changed} of {count(outcome.ran, 'plan')} differ{first}{declined}"


def conclusion(results: MutantResults) -> str:
    """Return the score in a sentence."""
    failing, changing = results.score
    counts = results.counts
    each = ", ".join(f"{counts[fate]} {fate}" for fate in Fate if counts[fate])
    share = f" ({failing / changing:.0%})" if changing else ""
    return f"{failing} of {count(changing, 'mutant')} that change some plan fail{share}: {each}."


def render_markdown(results: MutantResults) -> str:
    """Render the run as markdown."""
    return "\n".join([*_head(results), *(_row(results, each) for each in in_order(results)), ""])


def _head(results: MutantResults) -> Iterator[str]:
    asked = results.asked
    yield f"# Mutants of {asked.backend}"
    yield ""
    yield conclusion(results)
    yield (
        f"{len(results.outcomes):,} of {results.possible:,} mutants on executed lines; {len(results.cases):,} cases of "
        f"{asked.examples:,} that were drawn with seed {asked.seed}; at most {asked.seconds:g} s for each mutant."
    )
    yield ""
    yield "| line | code | change | fate | seconds |"
    yield "|---|---|---|---|---:|"


def _row(results: MutantResults, outcome: MutantOutcome) -> str:
    cells = (at(results, outcome), _code(outcome.source), _code(change(outcome)), fate(outcome))
    return f"| {' | '.join(cells)} | {outcome.seconds:.1f} |"


def _code(text: str) -> str:
    """Return source as code in a cell of a table."""
    return f"`` {text.replace('|', chr(92) + '|')} ``"
