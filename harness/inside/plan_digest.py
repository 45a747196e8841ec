"""A digest of a plan: of all that a backend hands to its kernels, and of its results.

Two runs of a case have the same digest if no kernel, and no caller, can tell them apart. Addresses do not count.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attnfuzz.harness.memory.allocation import extent
from attnfuzz.kernels.interface.backend import Op


class PlanDigest:
    """Digests each launch as it is made, and each result. It is the tracer of a launcher.

    `parts` has each argument and result with a digest of its own, in order. Arguments of stand-ins for classes, and of
    a release's own Triton kernels, are its plan as well.
    """

    with_own = True

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._step = ""
        self.parts: list[tuple[str, str]] = []

    def hexdigest(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()

    def begin_step(self, index: int, mode: str, *, related: bool = False) -> None:
        """Add the beginning of a step."""
        self._add("step", index, mode, related)
        self._step = f"step {index} ({mode})"

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
            self._add_part(f"{op.name}: {name}", arguments[name])

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
        self._add_part(f"result: {type(result).__name__}", result)

    def _add(self, *words: object) -> None:
        self._hash.update(repr(words).encode())

    def _add_part(self, name: str, value: Any) -> None:
        part = hashlib.blake2b(digest_size=8)
        for piece in _pieces(value):
            part.update(piece)
        self._add(name, part.hexdigest())
        self.parts.append((f"{self._step}, {name}", part.hexdigest()))


def _pieces(value: Any) -> Iterator[Any]:
    """Yield the bytes of a value: those of its elements and its form, without addresses."""
    if isinstance(value, torch.Tensor):
        yield repr((tuple(value.shape), value.stride(), value.dtype)).encode()
        if value.numel() and value.device.type == "cpu":
            yield _bytes_of(value)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield repr(name).encode()
            yield from _pieces(each)
    elif isinstance(value, list | tuple):
        yield repr(len(value)).encode()
        for each in value:
            yield from _pieces(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, int | float | str | bytes | torch.dtype | range | None):
        yield repr(value).encode()
    else:
        yield type(value).__qualname__.encode()


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor's elements; of one without gaps in place, of another one gathered."""
    dense = extent(tensor.shape, tensor.stride()) == tensor.numel()
    own = tensor.as_strided((tensor.numel(),), (1,)) if dense else tensor.contiguous().flatten()
    return own.detach().view(torch.uint8).numpy()
