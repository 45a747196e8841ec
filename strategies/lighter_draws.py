"""Draws that depend on the seed alone, without work that Hypothesis does for tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, control, core, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.strategies import SearchStrategy
from hypothesis.strategies._internal import collections, strategies

_TUPLE: Any = getattr(collections, "TupleStrategy", None)
_OPTIONS: Any = getattr(strategies, "SampledFromStrategy", None)

_DRAWS = 4096
"""Number of strategies whose draw function is kept; `strategies` caches as many."""


def drawing(examples: int) -> settings:
    """Return settings for drawing up to `examples` examples, without shrinking or storing any.

    No setting is left to a profile, because the profile that Hypothesis loads in CI would draw the same examples in
    every run.
    """
    return settings(
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


@contextmanager
def lighter_draws() -> Iterator[None]:
    """Draw the same cases without work that a search does not need. Hypothesis has no settings for it.

    - `cases` prevents Hypothesis from copying parts of an example over others, but it still looks for such parts after
      each example (engine.py, generate_mutations_from).
    - It saves, seeds and restores the generators of Python and numpy (core.py, deterministic_PRNG; control.py,
      deprecate_random_in_strategy), which no strategy and no search uses.
    - It records the span of choices and the value of each draw within a draw (data.py, ConjectureData.draw), for
      mutations and for shrinking. Draws of a case are choices among options, for which recording takes longer than
      choosing.
    - It keeps one copy of equal bounds of choices (data.py, _pooled_constraints): looking for it takes longer than
      drawing the choice, and a slice has few of them.
    - It tries options again if a filter refuses them (strategies.py, SampledFromStrategy), and labels the elements of a
      tuple for its report (collections.py, TupleStrategy).

    Releases without these names are left unchanged.

    Hypothesis documents two ways to drive a strategy from outside, and both are slower. Cases of trtllm_mha drawn per
    second of CPU time (Hypothesis 6.170, 1,000 cases): 630 with these changes, 405 by `fuzz_one_input` with random
    bytes, 326 by a `PrimitiveProvider` that draws as Hypothesis's own does, 344 by one that draws uniformly, 292
    without any change.
    """
    mutations = _replaced(ConjectureRunner, "generate_mutations_from", lambda *_: None)
    generators = _replaced(core, "deterministic_PRNG", lambda *_: nullcontext())
    changes = _replaced(control, "deprecate_random_in_strategy", lambda *_: nullcontext())
    copies = _replaced(ConjectureData, "_pooled_constraints", lambda _data, _kind, constraints: constraints)
    record = _replaced(ConjectureData, "draw", _without_record(ConjectureData.draw))
    with mutations, generators, changes, copies, record:
        yield


def _without_record(recorded: Callable[..., Any]) -> Callable[..., Any]:
    """Return `ConjectureData.draw` without recording draws within a draw."""

    def draw(data: ConjectureData, strategy: SearchStrategy[Any], *label: Any, **observed: Any) -> Any:
        return _way_to_draw(strategy)(data) if data.depth else recorded(data, strategy, *label, **observed)

    return draw


@lru_cache(_DRAWS)
def _way_to_draw(strategy: SearchStrategy[Any]) -> Callable[[ConjectureData], Any]:
    """Return the method with which a strategy draws, after checking the strategy."""
    strategy.validate()
    whole: Any = getattr(strategy, "wrapped_strategy", strategy)
    if type(whole) is _OPTIONS and getattr(whole, "_transformations", None) == ():
        options, last = whole.elements, len(whole.elements) - 1
        return lambda data: options[data.draw_integer(0, last)]
    if type(whole) is _TUPLE:
        parts = whole.element_strategies
        return lambda data: tuple([data.draw(part) for part in parts])
    way: Callable[[ConjectureData], Any] = whole.do_draw
    return way


@contextmanager
def _replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    found = getattr(owner, name, None)
    if found is None:
        yield
        return
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, found)


@contextmanager
def without_constants_of_sources() -> Iterator[None]:
    """Keep Hypothesis from drawing constants from the sources of loaded modules.

    Hypothesis takes modules outside of site-packages for the code under test (providers.py, _get_local_constants).
    These depend on whether attnfuzz is installed or a checkout, on backends in files, and on earlier imports. There is
    no setting for it; releases without such a pool are left unchanged.
    """
    of_sources = getattr(providers, "_get_local_constants", None)
    if of_sources is None:
        yield
        return
    none = type(providers._local_constants)()  # noqa: SLF001 - as above
    providers._get_local_constants = lambda: none  # noqa: SLF001
    # The cache holds constants of sources seen so far.
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = of_sources  # noqa: SLF001
        providers.CONSTANTS_CACHE.cache.clear()
