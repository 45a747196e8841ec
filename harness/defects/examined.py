"""Planted defects as a part of `attnfuzz doctor`: the first of each layer, searched on drawn cases."""

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from attnfuzz.harness.doctor.measurement import Measurement, judged, not_measured
from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect, Layer
from attnfuzz.reference.any_case import AnyCase

_TITLE = "planted defects"
_SEED = 1
_EXAMPLES = 200
_SECONDS = 5.0
"""Time limit of one search: each of these defects takes 1 to 7 cases (docs/results/judging.md: median 3)."""


class _Over(Exception):
    """Raised to end a search."""


class _Search(NamedTuple):
    """A search for one defect: the number of cases tried, and whether the last of them failed or time ran out."""

    tried: int
    found: bool
    late: bool


def planted_defects(
    runner: CaseRunner[Any], *, examples: int = _EXAMPLES, seconds: float = _SECONDS
) -> Iterator[Measurement]:
    """Search a defect of each layer in `examples` cases each. A search without failures FAILS.

    One that is not complete after `seconds` says nothing about the judge. Yields one row.
    """
    first: dict[Layer, Defect] = {}
    for defect in DEFECTS:
        first.setdefault(defect.layer, defect)
    searches = {defect.name: _search(defect, runner, examples, seconds) for defect in first.values()}
    found = [search.tried for search in searches.values() if search.found]
    words = f"{len(found)} of {len(searches)} found"
    if found:
        words += f", each in at most {max(found)} cases"
    missed = [name for name, search in searches.items() if not (search.found or search.late)]
    late = [f"{name} (after {search.tried})" for name, search in searches.items() if search.late]
    if missed:
        words += f"; not found: {', '.join(missed)}"
    if late:
        words += f"; no time left: {', '.join(late)}"
    yield not_measured(_TITLE, words) if late and not missed else judged(_TITLE, words, works=not missed)


def _search(defect: Defect, runner: CaseRunner[Any], examples: int, seconds: float) -> _Search:
    tried, found, late, until = 0, False, False, math.inf

    def visit(case: AnyCase) -> None:
        nonlocal tried, found, late, until
        tried += 1
        found = bool(runner.verdict(case).failures)
        if tried == 1:
            # The first case may have waited for a compiler.
            until = time.monotonic() + seconds
        late = not found and tried < examples and time.monotonic() >= until
        if found or late:
            raise _Over

    with suppress(_Over):
        run_examples(drawn_cases(backend_name(defect)), visit, examples=examples, seed_of=_SEED)
    return _Search(tried, found, late)
