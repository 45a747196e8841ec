"""A module that FlashInfer compiles at first use: what a bucket of geometries needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Module:
    """One compilation unit. `spec` gives FlashInfer's JitSpec for it (flashinfer.jit), and imports flashinfer.

    `name` says for a person what it is, like "XQA bf16, pages of 64, head dim 128"; equal names are equal modules.
    `spec` is called in another process: let it be a functools.partial of a function at the top of a module.
    """

    name: str
    spec: Callable[[], Any] = field(compare=False)
