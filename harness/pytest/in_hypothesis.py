"""What `check` asks of Hypothesis while one of its tests runs: which run this is, and not to time what we do.

Hypothesis has no interface for either. A release whose internals have other names is left as it is: then a test has the
deadline that its settings say, and Hypothesis shrinks before the reducer does.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hypothesis.control import current_build_context, currently_in_test_context


def run_key() -> Random | None:
    """Return an object that stands for the run of the test at hand, and lives as long; None if there is none.

    There is none in the last repetition of what failed, for which everything has to be run again.
    """
    context = current_build_context()
    if getattr(context, "is_final", True):
        return None
    # Each run has a source of random numbers of its own, which all of its cases share (core.py, wrapped_test).
    source = getattr(context.data, "_random", None)
    return source if isinstance(source, Random) else None


@contextmanager
def untimed() -> Iterator[None]:
    """Have Hypothesis count no time in here towards the deadline of its test, nor that of the draws before as too slow.

    How long a case takes depends on the machine, on its load, and on the deaths of workers.
    """
    if not currently_in_test_context():
        yield
        return
    data: Any = current_build_context().data
    started = time.perf_counter()
    try:
        yield
    finally:
        draws, rules = getattr(data, "draw_times", None), getattr(data, "_stateful_run_times", None)
        # The runtime of a test is what draws and the rules of state machines leave of it (core.py, execute_once), and
        # draws that take long fail a health check: their time becomes that of a rule.
        if isinstance(draws, dict) and isinstance(rules, dict):
            spent = time.perf_counter() - started + math.fsum(draws.values())
            draws.clear()
            rules["execute:attnfuzz"] = rules.get("execute:attnfuzz", 0.0) + spent
