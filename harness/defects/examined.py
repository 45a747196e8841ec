"""Planted defects as a part of `attnfuzz doctor`: the first of each layer, searched on drawn cases."""

import time
from collections.abc import Iterator
from contextlib import suppress

from attnfuzz.harness.doctor.measurement import Measurement, judged
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect, Layer
from attnfuzz.reference.any_case import AnyCase

_SEED = 1
_EXAMPLES = 200
_SECONDS = 5.0
"""Time limit of one search: each of these defects takes 1 to 7 cases (docs/results/judging.md: median 3)."""


class _Over(Exception):
    """Raised to end a search."""


def planted_defects(runner: Runner) -> Iterator[Measurement]:
    """Search a defect of each layer. Yields one row."""
    first: dict[Layer, Defect] = {}
    for defect in DEFECTS:
        first.setdefault(defect.layer, defect)
    found = {defect.name: _found(defect, runner) for defect in first.values()}
    missed = [name for name, cases in found.items() if cases is None]
    counts = [cases for cases in found.values() if cases is not None]
    words = f"{len(counts)} of {len(found)} found, each in at most {max(counts, default=0)} cases"
    yield judged("planted defects", f"{words}; not found: {', '.join(missed)}" if missed else words, works=not missed)


def _found(defect: Defect, runner: Runner) -> int | None:
    """Return the number of cases to a defect's first failure, or None."""
    tried, until, fails = 0, time.monotonic() + _SECONDS, False

    def visit(case: AnyCase) -> None:
        nonlocal tried, fails
        tried += 1
        fails = bool(runner.verdict(case).failures)
        if fails or time.monotonic() > until:
            raise _Over

    with suppress(_Over):
        run_examples(drawn_cases(backend_name(defect)), visit, examples=_EXAMPLES, seed_of=_SEED)
    return tried if fails else None
