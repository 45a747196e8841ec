"""Draws without work that Hypothesis does for tests."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from hypothesis import core
from hypothesis.internal.conjecture.engine import ConjectureRunner


@contextmanager
def lighter_draws() -> Iterator[None]:
    """Neither look for parts of an example to copy over others, nor seed global random numbers before each one.

    `cases` prevents such copies, but Hypothesis (engine.py, generate_mutations_from) looks for them after each example.
    It also saves, seeds and restores the generators of Python and numpy (core.py, deterministic_PRNG), which no
    strategy and no search uses. Neither has a setting; releases without these names are left as they are.
    """
    mutations = _replaced(ConjectureRunner, "generate_mutations_from", lambda *_: None)
    with mutations, _replaced(core, "deterministic_PRNG", lambda *_: nullcontext()):
        yield


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
