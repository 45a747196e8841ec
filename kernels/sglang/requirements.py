"""What a release imports beside torch: nothing of it is needed before one is run."""

import importlib.util
from typing import Final

NEEDS: Final = ("triton", "flashinfer", "orjson", "psutil", "pybase64", "zmq", "PIL", "starlette", "pydantic")
"""By the names that they are imported by."""


def absent() -> str | None:
    """Which of them are not installed, in a line that says how to install them; None if all are."""
    lacking = [package for package in NEEDS if importlib.util.find_spec(package) is None]
    return f"needs {', '.join(lacking)}: pip install 'attnfuzz[sglang]'" if lacking else None
