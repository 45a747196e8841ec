"""Drawing examples with Hypothesis, with explicit settings and a seed of our own."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import given, seed
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.family import family_with
from attnfuzz.harness.search.drawn_part import EVERYTHING, DrawnPart
from attnfuzz.harness.search.restrict import NoSuchPart, restricted
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.lighter_draws import drawing, lighter_draws, without_constants_of_sources


def drawn_capability(name: str, part: DrawnPart) -> Any:
    """Return a part of the capability of the named backend. Raises NoSuchPart, UnknownBackend or BackendFileError."""
    return restricted(name, resolve(name).capability, part)


def drawn_cases(
    name: str, guard: Guard | None = None, lean: Lean = NO_LEAN, *, part: DrawnPart = EVERYTHING
) -> SearchStrategy[AnyCase]:
    """Return a strategy of cases that the named backend supports, biased by `lean`, with `guard` if one is given.

    Raises NoSuchPart, UnknownBackend or BackendFileError.
    """
    capability = drawn_capability(name, part)
    strategy = family_with(capability).cases(capability, name, lean)
    if guard is None:
        return strategy
    return strategy.map(lambda case: case.having(guard=guard))


def check_drawn(name: str, part: DrawnPart) -> None:
    """Raise NoSuchPart unless a case with the features that `part` names is drawn, which may take some seconds."""
    if not (part.only or part.never):
        return
    found: list[AnyCase] = []
    run_examples(drawn_cases(name, part=part), found.append, examples=1, seed_of=1)
    if not found:
        words = " and ".join((*part.only, *(f"without {word}" for word in part.never)))
        raise NoSuchPart(f"no case of {name} with {words} was drawn: they exclude each other, or are too rare together")


AT_ONCE = 10
"""Number of cases drawn before they are visited, since a visit evicts Hypothesis from the processor's caches."""


class _Raised(BaseException):
    """Carries an exception past Hypothesis, which would treat it as a failure and run the example again."""


def run_examples(
    strategy: SearchStrategy[Any],
    visit: Callable[[Any], object],
    *,
    examples: int,
    seed_of: int,
) -> None:
    """Call `visit` on up to `examples` drawn cases in their order, and raise the first exception that it raises.

    Hypothesis does not shrink: the reducer edits the case itself, and knows which features a smaller one has to keep.
    It stores no examples either: failing cases are kept as findings, and in the corpus.

    Constants of loaded modules are not drawn. Up to `AT_ONCE` cases are drawn before they are visited. Nothing is
    visited if a filter of `strategy` refuses all that is drawn.
    """
    drawn: list[Any] = []
    stopped: Exception | None = None

    def visit_drawn() -> None:
        for case in drawn:
            visit(case)
        drawn.clear()

    @drawing(examples)
    @seed(seed_of)
    @given(strategy)
    def example(case: AnyCase) -> None:
        drawn.append(case)
        if len(drawn) < AT_ONCE:
            return
        try:
            visit_drawn()
        except Exception as error:
            raise _Raised(error) from error

    try:
        with without_constants_of_sources(), lighter_draws(), suppress(Unsatisfiable):
            example()
    except _Raised as raised:
        stopped = raised.args[0]
    if stopped is not None:
        raise stopped
    visit_drawn()


def derive_seed(base: int, *path: str | int) -> int:
    """Return a 64-bit seed for one part of a run with seed `base`, independent of those of other parts."""
    text = "/".join(map(str, (base, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
