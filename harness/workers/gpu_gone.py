"""A GPU that does not answer any more, which a kernel may cause: the driver has none, or never answers."""

from collections.abc import Callable

from attnfuzz.reference.user_error import UserError

SECONDS_FOR_A_CONTEXT = 60.0
"""Time limit for the driver to create a context. Alone it takes a second, and one after the other if many are created
at the same time.
"""

ASKING_GPU = b"asking the GPU's driver for a context"
"""The journal entry of a worker that waits for the driver."""


on_waiting: Callable[[float], None] | None = None
"""Called regularly while a worker waits for the driver, with the seconds so far. A job tells its main process."""


class GpuGone(UserError):
    """The GPU does not answer, for this `reason`. The message is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the GPU does not answer: {reason}")
        self.reason = reason
