"""Quality of explanations: the share that is right, wrong or missing, on planted defects with known explanations.

With `--within`, the defects are a sample: as many as time allows, in an order shuffled by the seed.
"""

import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from measurement import count_option, seed_option, show

from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.confirm import STATISTICAL
from attnfuzz.harness.search.examples import derive_seed, drawn_cases, run_examples
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect
from attnfuzz.reference.any_case import AnyCase

PINS = Path(__file__).parents[1] / "tests" / "defects"
RACES = 20
"""Number of runs of a pinned case within which a race shows."""


@dataclass(frozen=True)
class Explained:
    """A wrong output of a defect and its explanation. `seconds` is the time that the explanation took."""

    defect: Defect
    source: str
    failure: Observation
    seconds: float

    @property
    def score(self) -> str:
        """The verdict on the explanation. If it names several alternatives, one of them has to be right."""
        if not self.failure.mistakes:
            return "silent"
        return "right" if set(self.failure.mistakes) & set(self.defect.explained_by) else "wrong"


class _FirstFailure(Exception):
    """Ends a search."""


def pinned(runner: Runner, defect: Defect) -> tuple[AnyCase, Verdict] | None:
    """Return the smallest case of a defect, or None unless it fails with wrong numbers."""
    pin = load_pin(PINS, defect.name)
    for _ in range(RACES if pin is not None and pin.kind in STATISTICAL else 0):
        assert pin is not None
        verdict = runner.verdict(pin.case)
        if _wrong_number(verdict) is not None:
            return pin.case, verdict
    return None


def drawn(runner: Runner, defect: Defect, seed: int, examples: int) -> tuple[AnyCase, Verdict] | None:
    """Return the first drawn case that fails with wrong numbers, as it was drawn, or None."""
    found: list[tuple[AnyCase, Verdict]] = []

    def visit(case: AnyCase) -> None:
        verdict = runner.verdict(case)
        if _wrong_number(verdict) is not None:
            found.append((case, verdict))
            raise _FirstFailure

    name = backend_name(defect)
    try:
        run_examples(drawn_cases(name), visit, examples=examples, seed_of=derive_seed(seed, name, 0))
    except Exception:
        # Hypothesis runs the case again, and has its own exceptions for a race that does not show a second time.
        if not found:
            raise
    return found[0] if found else None


def _wrong_number(verdict: Verdict) -> Observation | None:
    return next((each for each in verdict.failures if each.kind in STATISTICAL and each.row is not None), None)


def explained(runner: Runner, defect: Defect, source: str, found: tuple[AnyCase, Verdict]) -> Explained:
    """Explain the first wrong number of a case."""
    start = time.perf_counter()
    failure = _wrong_number(runner.explained(*found))
    assert failure is not None
    return Explained(defect, source, failure, time.perf_counter() - start)


@click.command()
@click.argument("names", nargs=-1, metavar="[DEFECT]...")
@count_option("--draws", 2, "Searches for a drawn case of each defect, beside its pinned one.")
@count_option("--examples", 150, "Examples after which a search gives up.")
@click.option("--within", type=click.FloatRange(min=0), help="Begin no defect after these seconds.")
@seed_option
def main(*, names: tuple[str, ...], draws: int, examples: int, within: float | None, seed: int) -> None:
    """Explain planted defects: each in its pinned case, if that has a wrong number, and in cases as they are drawn."""
    until = math.inf if within is None else time.monotonic() + within
    chosen = [each for each in DEFECTS if not names or each.name in names]
    results, done = [], 0
    with Runner() as runner:
        for defect in random.Random(seed).sample(chosen, len(chosen)):
            if time.monotonic() >= until:
                break
            done += 1
            sources = {"pinned": pinned(runner, defect)}
            sources |= {f"drawn {n + 1}": drawn(runner, defect, seed + n, examples) for n in range(draws)}
            for source, found in sources.items():
                if found is not None:
                    results.append(explained(runner, defect, source, found))
    columns = ("cases", "defects", "right", "silent", "wrong", "seconds: median (worst)")
    show(f"Explanations of {done} of {len(chosen)} defects", columns, _rows(results))
    for each in (each for each in results if each.score == "wrong"):
        click.echo(f"wrong: {each.defect.name}, {each.source}: {', '.join(each.failure.mistakes)}")
        click.echo(f"  {each.failure.message}")


def _rows(results: list[Explained]) -> list[list[str]]:
    kinds = {"pinned": "pinned", "drawn": "as drawn", "": "all"}
    rows = []
    for prefix, kind in kinds.items():
        some = [each for each in results if each.source.startswith(prefix)]
        if some:
            scores, seconds = Counter(each.score for each in some), [each.seconds for each in some]
            shares = [f"{scores[score]} ({scores[score] / len(some):.0%})" for score in ("right", "silent", "wrong")]
            defects = str(len({each.defect.name for each in some}))
            rows.append([kind, defects, *shares, f"{median(seconds):.2f} ({max(seconds):.1f})"])
    return rows


if __name__ == "__main__":
    main()
