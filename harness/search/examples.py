"""Drawing with Hypothesis: explicit settings, our own seed, and only failing examples remembered."""

import hashlib
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.search.remembered import SliceExamples
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.lighter_draws import lighter_draws
from attnfuzz.strategies.source_constants import without_constants_of_sources


def drawn_cases(name: str, guard: Guard | None = None, lean: Lean = NO_LEAN) -> SearchStrategy[Case]:
    """The cases that the backend called `name` supports, biased by `lean`, flush with `guard` if one is given.

    Raises UnknownBackend or BackendFileError.
    """
    strategy = cases(resolve(name).capability, name, lean)
    if guard is None:
        return strategy
    return strategy.map(lambda case: replace(case, guard=guard))


def run_examples(
    strategy: SearchStrategy[Case],
    visit: Callable[[Case], object],
    *,
    examples: int,
    seed_of: int,
    remembered: SliceExamples | None = None,
) -> None:
    """Call `visit` on up to `examples` drawn cases, and raise the first exception that it raises.

    Hypothesis does not shrink: the reducer edits the case itself, and knows which features a smaller one has to keep.
    Failing examples are kept in `remembered`, and those in it tried first; `visit` returns a true value for a case that
    failed without raising.
    No setting is left to a profile: the one that Hypothesis loads in CI would draw the same cases in every run.
    Constants of loaded modules are not drawn. Exceptions that are not an `Exception` pass through at once.
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

    with without_constants_of_sources(), lighter_draws():
        example()


def _visit_remembered(visit: Callable[[Case], object], case: Case, remembered: SliceExamples) -> None:
    try:
        remembered.failed = bool(visit(case))
    except Exception:
        remembered.failed = True
        raise
    except BaseException:
        # Hypothesis would keep the current case, which is fine.
        remembered.closed = True
        raise


def derive_seed(base: int, *path: str | int) -> int:
    """A 64-bit seed for one part of a run with seed `base`, independent of other parts'."""
    text = "/".join(map(str, (base, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
