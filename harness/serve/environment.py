"""The versions that a finding of a server may depend on, without torch."""

import platform
import sys

import attnfuzz
from attnfuzz.harness.serve.surface import Surface


def client_environment() -> dict[str, str]:
    """The side of the client."""
    return {
        "attnfuzz": attnfuzz.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hypothesis": _hypothesis(),
    }


def _hypothesis() -> str:
    loaded = sys.modules.get("hypothesis")
    return str(getattr(loaded, "__version__", "")) or "not loaded"


def server_environment(surface: Surface, command: str | None) -> dict[str, str]:
    """The side of the server: its version, model and sizes, and its command line."""
    found = {
        "server": surface.engine,
        "model": surface.model,
        "sizes": surface.words(),
        "command": command or surface.command,
    }
    return {name: text for name, text in found.items() if text}
