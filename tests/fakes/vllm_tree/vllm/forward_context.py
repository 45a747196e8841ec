"""What the layers of a model find while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

_contexts: list[Any] = []


def get_forward_context() -> Any:
    """The context."""
    return _contexts[-1]


@contextmanager
def set_forward_context(**values: Any) -> Iterator[None]:
    """Run the block in a context."""
    _contexts.append(SimpleNamespace(**values))
    try:
        yield
    finally:
        _contexts.pop()
