"""Access to Hypothesis' internals for `check`: identify the running test, end it, and exempt our time from deadlines.

Hypothesis has no interface for these. A release whose internals have other names is left as it is: a test then has the
deadline of its settings, and Hypothesis shrinks before or after the reducer does.
"""

import inspect
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hypothesis import Phase, settings
from hypothesis.control import current_build_context, currently_in_test_context


def run_key() -> Random | None:
    """Return an object that identifies the test run, and lives as long; None in its last repetition or outside."""
    context = current_build_context()
    if getattr(context, "is_final", True):
        return None
    # Each run has its own source of random numbers, shared by all of its cases (core.py, wrapped_test).
    source = getattr(context.data, "_random", None)
    return source if isinstance(source, Random) else None


def end_search() -> None:
    """Make the running test end with the current example, if that fails: no other is drawn, and none is shrunk."""
    frame = inspect.currentframe()
    while frame is not None:
        engine: Any = frame.f_locals.get("self")
        if type(engine).__name__ == "ConjectureRunner" and isinstance(getattr(engine, "settings", None), settings):
            # It stops at the first failure if it may not shrink (engine.py, should_generate_more).
            phases = [phase for phase in engine.settings.phases if phase not in {Phase.shrink, Phase.explain}]
            engine.settings = settings(engine.settings, phases=phases)
            return
        frame = frame.f_back


@contextmanager
def untimed() -> Iterator[None]:
    """Exempt the block, and the draws before it, from Hypothesis' deadline: times depend on the machine."""
    if not currently_in_test_context():
        yield
        return
    data: Any = current_build_context().data
    started = time.perf_counter()
    try:
        yield
    finally:
        draws, rules = getattr(data, "draw_times", None), getattr(data, "_stateful_run_times", None)
        # A test's runtime excludes draws and the rules of state machines (core.py, execute_once), and slow draws
        # fail a health check: count their time as a rule's.
        if isinstance(draws, dict) and isinstance(rules, dict):
            spent = time.perf_counter() - started + math.fsum(draws.values())
            draws.clear()
            rules["execute:attnfuzz"] = rules.get("execute:attnfuzz", 0.0) + spent
