"""Nurseries of these tests are forked off a process that has imported FlashInfer, as well as torch."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from forked_python import forked_processes


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Without it, each worker for a file of backends imports FlashInfer: 3 s of CPU time.

    On a machine with a GPU they do: importing FlashInfer creates a context there, after which no process may fork.
    """
    also = () if torch.cuda.is_available() or find_spec("flashinfer") is None else ("flashinfer",)
    with forked_processes(*also):
        yield
