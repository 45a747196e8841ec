"""How Hypothesis runs for us: every setting explicit, a seed of ours, and nothing remembered between runs."""

import hashlib
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from attnfuzz.reference.case import Case


def run_examples(
    strategy: SearchStrategy[Case],
    visit: Callable[[Case], None],
    *,
    examples: int,
    seed_of: int,
    shrink: bool = True,
) -> None:
    """Call `visit` on up to `examples` drawn cases; if it raises, shrink, and raise what the smallest case raises.

    Without `shrink`, raise what the first case raises that does.

    No setting is left to a profile: the one that Hypothesis loads where CI is set would draw the same cases in every
    run. Exceptions that are no `Exception` pass through at once.
    """

    @settings(
        max_examples=examples,
        derandomize=False,
        database=None,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
        deadline=None,
        print_blob=False,
    )
    @seed(seed_of)
    @given(strategy)
    def example(case: Case) -> None:
        visit(case)

    example()


def derive_seed(base: int, *path: str | int) -> int:
    """A 64-bit seed for one part of a run with seed `base`, independent of those of other parts."""
    text = "/".join(map(str, (base, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
