"""What a step gave, brought from a GPU to where it is judged: bit by bit, NaN payloads included."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from attnfuzz.harness.memory import layout
from attnfuzz.kernels.backend import Output

_ALIGNMENT = 8
"""Bytes: no element is larger."""


def on_host(output: Output) -> Output:
    """The same output with all of its tensors in the host's memory, strides and shared storage included."""
    tensors = [output.out, output.lse, output.sinks]
    tensors += [each for entry in output.attended for each in (entry.query, entry.key, entry.value)]
    moved = Moved(tensor for tensor in tensors if tensor is not None and not tensor.is_cpu)
    if not moved:
        return output
    return replace(
        output,
        out=moved.of(output.out),
        lse=None if output.lse is None else moved.of(output.lse),
        sinks=None if output.sinks is None else moved.of(output.sinks),
        attended=tuple(
            replace(entry, query=moved.of(entry.query), key=moved.of(entry.key), value=moved.of(entry.value))
            for entry in output.attended
        ),
    )


class Moved:
    """Copies of what some tensors reach over, one for each storage: the queries of all requests are one copy."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        spans: dict[int, tuple[torch.UntypedStorage, int, int]] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            first, end = _span(tensor)
            _, least, most = spans.get(storage.data_ptr(), (storage, first, end))
            spans[storage.data_ptr()] = storage, min(first, least), max(end, most)
        self._copies = {
            address: (first, _copied(storage, first, end)) for address, (storage, first, end) in spans.items()
        }

    def __len__(self) -> int:
        return len(self._copies)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements in a copy; `tensor` itself if its storage was not copied."""
        first, copy = self._copies.get(tensor.untyped_storage().data_ptr(), (0, None))
        if copy is None:
            return tensor
        offset = tensor.storage_offset() - first // tensor.itemsize
        return torch.empty(0, dtype=tensor.dtype).set_(copy, offset, tensor.shape, tensor.stride())


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins and ends in its storage, in bytes; it begins where elements of any size may begin."""
    first = int(tensor.storage_offset())
    end = first + layout.extent(tensor.shape, tensor.stride())
    return first * tensor.itemsize // _ALIGNMENT * _ALIGNMENT, end * tensor.itemsize


def _copied(storage: torch.UntypedStorage, first: int, end: int) -> torch.UntypedStorage:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return whole[first:end].to("cpu", copy=True).untyped_storage()
