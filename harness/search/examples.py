"""How Hypothesis runs for us: every setting explicit, a seed of ours, and nothing remembered but failing examples."""

import hashlib
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from attnfuzz.harness.search.constants import without_constants_of_sources
from attnfuzz.harness.search.remembered import SliceExamples
from attnfuzz.reference.case import Case


def run_examples(
    strategy: SearchStrategy[Case],
    visit: Callable[[Case], object],
    *,
    examples: int,
    seed_of: int,
    remembered: SliceExamples | None = None,
) -> None:
    """Call `visit` on up to `examples` drawn cases, and raise what the first case raises that does.

    Hypothesis does not shrink: the reducer edits the case itself, and knows what a smaller one has to keep. Failing
    examples are kept in `remembered`, and those in it tried first; `visit` returns something true for a case that
    failed although it raises nothing.

    No setting is left to a profile: the one that Hypothesis loads where CI is set would draw the same cases in every
    run. Nothing is drawn because it stands in a loaded module. Exceptions that are no `Exception` pass through at once.
    """
    phases = (Phase.generate,) if remembered is None else (Phase.reuse, Phase.generate)

    @settings(
        max_examples=examples,
        derandomize=False,
        database=remembered,
        verbosity=Verbosity.quiet,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
        deadline=None,
        print_blob=False,
    )
    @seed(seed_of)
    @given(strategy)
    def example(case: Case) -> None:
        if remembered is None:
            visit(case)
        else:
            _visit_remembered(visit, case, remembered)

    with without_constants_of_sources():
        example()


def _visit_remembered(visit: Callable[[Case], object], case: Case, remembered: SliceExamples) -> None:
    try:
        remembered.failed = bool(visit(case))
    except Exception:
        remembered.failed = True
        raise
    except BaseException:
        # Hypothesis would keep the case at hand, and there is nothing wrong with it.
        remembered.closed = True
        raise


def derive_seed(base: int, *path: str | int) -> int:
    """A 64-bit seed for one part of a run with seed `base`, independent of those of other parts."""
    text = "/".join(map(str, (base, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
