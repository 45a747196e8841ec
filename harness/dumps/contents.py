"""The buffers of a case in the making: what tensors of a dump become, and what stands in for their contents."""

import ctypes
from collections.abc import Callable
from enum import StrEnum
from itertools import count

import torch

from attnfuzz.harness.calls.trace import literal_buffer
from attnfuzz.harness.dumps.recorded import DumpError
from attnfuzz.harness.memory.allocation import dense_stride, extent
from attnfuzz.reference.call_validity import MAX_BYTES
from attnfuzz.reference.calls import Buffer, Drawn, View, content_of
from attnfuzz.reference.dtypes import DType


class Contents(StrEnum):
    """What tensors of floating point numbers hold in a case; integers are always kept.

    VALUES: what was recorded. STATISTICS: normal numbers with the mean and standard deviation of what was recorded.
    SEED: standard normal numbers, for which nothing that was recorded is read.
    """

    VALUES = "values"
    STATISTICS = "statistics"
    SEED = "seed"


class BufferShelf:
    """Buffers, by name, of all together no more than a case may have.

    Drawn ones get seeds from `seed` on, one after another. Raises DumpError, which names `source`, for what no case can
    hold.
    """

    def __init__(self, contents: Contents, seed: int, source: str) -> None:
        self._contents, self._seeds, self._source = contents, count(seed), source
        self._buffers: dict[str, Buffer] = {}
        self._left = MAX_BYTES

    def put(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        read: Callable[[], torch.Tensor],
        stride: tuple[int, ...] | None = None,
    ) -> View:
        """A buffer for a tensor whose content `read` gives when it is needed; gaps of `stride` hold zeros."""
        stride = dense_stride(shape) if stride is None else stride
        known, size = self._reserve(name, shape, dtype, stride)
        if not size or not dtype.is_floating_point or self._contents is Contents.VALUES:
            self._buffers[name] = literal_buffer(name, known, _flat_bytes(read(), shape, stride, known))
        else:
            drawn = Drawn(seed=next(self._seeds))
            if self._contents is Contents.STATISTICS:
                drawn = _like(read(), drawn.seed)
            self._buffers[name] = Buffer(name=name, dtype=known, size=size, drawn=drawn)
        return View(buffer=name, shape=shape, stride=stride)

    def keep(self, name: str, tensor: torch.Tensor) -> View:
        """A buffer with exactly what a tensor holds, whatever is asked for others."""
        shape = tuple(tensor.shape)
        stride = dense_stride(shape)
        known, _ = self._reserve(name, shape, tensor.dtype, stride)
        self._buffers[name] = literal_buffer(name, known, _flat_bytes(tensor, shape, stride, known))
        return View(buffer=name, shape=shape, stride=stride)

    def output(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None = None
    ) -> View:
        """A buffer that a kernel has still to fill."""
        stride = dense_stride(shape) if stride is None else stride
        known, size = self._reserve(name, shape, dtype, stride)
        self._buffers[name] = Buffer(name=name, dtype=known, size=size)
        return View(buffer=name, shape=shape, stride=stride)

    def known(self, name: str, dtype: torch.dtype) -> DType:
        """A dtype by its name. DumpError if no case can hold it."""
        try:
            return DType.of(dtype)
        except ValueError:
            what = str(dtype).removeprefix("torch.")
            have = ", ".join(DType)
            raise DumpError(f"{self._source}: {name} is {what}, which no case can hold (only {have})") from None

    def tensor(self, view: View) -> torch.Tensor:
        """What a view of a buffer with content shows, as integers of the elements' width."""
        buffer = self._buffers[view.buffer]
        content = content_of(buffer)
        assert content is not None
        return content.view(buffer.dtype.bits).as_strided(view.shape, view.stride, view.offset)

    def dtype(self, view: View) -> DType:
        """The dtype of a view's buffer."""
        return self._buffers[view.buffer].dtype

    def is_drawn(self, view: View) -> bool:
        """Whether a view's buffer is drawn anew from a seed."""
        return self._buffers[view.buffer].drawn is not None

    def buffers(self) -> tuple[Buffer, ...]:
        """All of them, in the order of their making."""
        return tuple(self._buffers.values())

    def _reserve(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...]
    ) -> tuple[DType, int]:
        """The dtype by its name, and the elements that a buffer for the tensor has."""
        known = self.known(name, dtype)
        size = extent(shape, stride)
        self._left -= size * known.itemsize
        if self._left < 0:
            raise DumpError(
                f"{self._source}: with {name} more has to be kept than the {MAX_BYTES >> 30} GiB that a case may have; "
                "import a call with fewer or shorter requests"
            )
        return known, size


def _flat_bytes(dense: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], dtype: DType) -> bytes:
    """All bytes from the first element of a tensor with these strides to its last."""
    bits = dense.contiguous().view(dtype.bits)
    if stride != dense_stride(shape):
        laid_out = torch.zeros(extent(shape, stride), dtype=dtype.bits)
        laid_out.as_strided(shape, stride).copy_(bits)
        bits = laid_out
    return ctypes.string_at(bits.data_ptr(), bits.nbytes) if bits.numel() else b""


def _like(recorded: torch.Tensor, seed: int) -> Drawn:
    """Numbers with the mean and standard deviation of what is finite in `recorded`."""
    numbers = recorded.to(torch.float32)
    # Not by brackets, which make an index of 64 bits for each axis of each element.
    finite = numbers.masked_select(torch.isfinite(numbers))
    if not finite.numel():
        return Drawn(seed=seed)
    return Drawn(seed=seed, mean=float(finite.mean()), std=float(finite.std(correction=0)))
