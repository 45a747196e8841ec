"""The start of a command that runs cases: torch is imported once, for the command and the nurseries that it needs."""

import os
import sys

from attnfuzz.harness.cli.terminal import STARTING, tell
from attnfuzz.harness.workers.tethered import ENVIRONMENT

_NURSERIES = 2
"""A user's backend is described by one, and run by the other."""


def start() -> None:
    """Say that torch and the backends are loaded, and load torch."""
    tell(STARTING)
    share_torch()


def share_torch() -> None:
    """Import torch, and fork the nurseries that this command will take.

    A process that already has torch, such as one of a test, may have threads and state, and forks none.
    """
    if "torch" in sys.modules:
        return
    os.environ.update(ENVIRONMENT)
    from attnfuzz.harness.workers.forked import fork_ahead

    for _ in range(_NURSERIES):
        fork_ahead()
