"""Draws that depend on the seed alone, not on the modules that are loaded."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture import providers


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
