"""Requirements on the operating system."""

import sys

from attnfuzz.reference.user_error import UserError


class WrongSystem(UserError):
    """attnfuzz can't run cases on this system. The message says where it can."""


def require_linux() -> None:
    """Raise WrongSystem on anything but Linux. Called before importing modules of POSIX, which Windows lacks."""
    if sys.platform != "linux":
        name = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        instead = "WSL 2, a container" if sys.platform == "win32" else "a container"
        raise WrongSystem(
            f"attnfuzz needs Linux, and this is {name}: it forks workers, watches them by pidfd and shares memfds with "
            f"them. Run it in {instead} or a virtual machine with Linux"
        )
