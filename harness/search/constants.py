"""Keeps the sources of loaded modules out of what Hypothesis draws: a seed draws the same wherever it is run."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture import providers


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
