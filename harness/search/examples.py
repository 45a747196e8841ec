"""How Hypothesis draws for us: every setting explicit, a seed of ours, and nothing remembered but failing examples."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.search.remembered import SliceExamples
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.lean import NO_LEAN, Lean


def drawn_cases(name: str, guard: Guard | None = None, lean: Lean = NO_LEAN) -> SearchStrategy[Case]:
    """The cases that the backend called `name` supports, with tensors flush with `guard` if one is given.

    What `lean` names is drawn more often than otherwise.

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


@contextmanager
def without_constants_of_sources() -> Iterator[None]:
    """Have Hypothesis draw no number because it stands in the source of a loaded module.

    It takes modules outside of site-packages for what is under test (providers.py, _get_local_constants): which these
    are depends on whether attnfuzz is installed or a checkout, on backends in files, and on what was imported before.
    There is no setting for it; releases that have no such pool are left as they are.
    """
    of_sources = getattr(providers, "_get_local_constants", None)
    if of_sources is None:
        yield
        return
    none = type(providers._local_constants)()  # noqa: SLF001 - as above
    providers._get_local_constants = lambda: none  # noqa: SLF001
    # Which constants may be drawn where is kept, with those of the sources that were seen by then.
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = of_sources  # noqa: SLF001
        providers.CONSTANTS_CACHE.cache.clear()
