"""Imports before workers are forked: what asks for a GPU then must get no CUDA context, which no fork survives."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def no_gpu_visible() -> Iterator[None]:
    """Have CUDA find no device. Workers that are forked afterwards see theirs."""
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before
