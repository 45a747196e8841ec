"""Drawing with Hypothesis: explicit settings, and our own seed."""

import hashlib
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
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
) -> None:
    """Call `visit` on up to `examples` drawn cases, and raise the first exception that it raises.

    Hypothesis does not shrink: the reducer edits the case itself, and knows which features a smaller one has to keep.
    Nor does it keep examples: failing cases are kept as findings, and in the corpus.
    No setting is left to a profile: the one that Hypothesis loads in CI would draw the same cases in every run.
    Constants of loaded modules are not drawn. Exceptions that are not an `Exception` pass through at once.
    """

    @settings(
        max_examples=examples,
        derandomize=False,
        database=None,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
        deadline=None,
        print_blob=False,
    )
    @seed(seed_of)
    @given(strategy)
    def example(case: Case) -> None:
        visit(case)

    with without_constants_of_sources(), lighter_draws():
        example()


def derive_seed(base: int, *path: str | int) -> int:
    """A 64-bit seed for one part of a run with seed `base`, independent of other parts'."""
    text = "/".join(map(str, (base, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
