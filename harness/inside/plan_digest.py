"""A digest of a plan: of all that a backend hands to its kernels, and of its results.

Two runs of a case have the same digest if no kernel, and no caller, can tell them apart. Addresses do not count.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnfuzz.harness.memory.allocation import extent
from attnfuzz.kernels.interface.backend import Op


class PlanDigest:
    """Digests each launch as it is made, and each result. It is the tracer of a launcher."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def hexdigest(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()

    def begin_step(self, index: int, mode: str, *, related: bool = False) -> None:
        """Add the beginning of a step."""
        self._add("step", index, mode, related)

    def begin_again(self) -> None:
        """Add that the step begins again."""
        self._add("again")

    def end(self) -> None:
        """Add that the calls so far have failed."""
        self._add("end")

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        """Add a call with its arguments: values of tensors that it may read, and forms of all."""
        self._add("launch", op.name)
        for name in sorted(arguments):
            self._add(name)
            self._add_value(arguments[name])

    def returned(self, result: Any = None, *, raised: bool = False) -> None:
        """Add whether the call raised. Its result is added as an argument of later calls, or as the step's."""
        del result
        self._add("returned", raised)

    def captured(self, graph: object, launches: Sequence[tuple[Op, dict[str, Any]]]) -> None:
        """Add the number of captured calls. Each is added when it is replayed."""
        del graph
        self._add("captured", len(launches))

    def replayed(self, graph: object) -> bool:
        """Add that a graph is replayed, whose calls are added one by one."""
        del graph
        self._add("replayed")
        return False

    def result(self, result: object) -> None:
        """Add a step's result."""
        self._add("result", type(result).__name__)
        self._add_value(result)

    def _add(self, *words: object) -> None:
        self._hash.update(repr(words).encode())

    def _add_value(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif isinstance(value, Mapping):
            for name, each in value.items():
                self._add(name)
                self._add_value(each)
        elif isinstance(value, list | tuple):
            self._add(len(value))
            for each in value:
                self._add_value(each)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self._add(field.name)
                self._add_value(getattr(value, field.name))
        elif isinstance(value, int | float | str | bytes | torch.dtype | range | None):
            self._add(value)
        else:
            self._add(type(value).__qualname__)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        self._add(tuple(tensor.shape), tensor.stride(), str(tensor.dtype))
        if tensor.numel() and tensor.device.type == "cpu":
            self._hash.update(_bytes_of(tensor))


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor's elements; of one without gaps in place, of another one gathered."""
    dense = extent(tensor.shape, tensor.stride()) == tensor.numel()
    own = tensor.as_strided((tensor.numel(),), (1,)) if dense else tensor.contiguous().flatten()
    return own.detach().view(torch.uint8).numpy()
