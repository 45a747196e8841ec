"""The buffers of a case, made from a dump's tensors with recorded or drawn contents."""

import ctypes
from collections.abc import Callable
from enum import StrEnum
from itertools import count

import torch

from attnfuzz.harness.calls.literal_buffers import literal_buffer
from attnfuzz.harness.dumps.recorded import DumpError
from attnfuzz.harness.memory.allocation import dense_stride, extent
from attnfuzz.reference.call_validity import MAX_BYTES
from attnfuzz.reference.calls import Buffer, Drawn, View
from attnfuzz.reference.dtypes import DType


class Contents(StrEnum):
    """The contents of floating point tensors in a case; integers are always kept.

    VALUES: as recorded. STATISTICS: normal numbers with the recorded mean and standard deviation. SEED: standard
    normal numbers; no recorded content is read.
    """

    VALUES = "values"
    STATISTICS = "statistics"
    SEED = "seed"


class BufferShelf:
    """Buffers by name, limited to a case's total size.

    Drawn ones get consecutive seeds from `seed` on. Raises DumpError, which names `source`, for content that no case
    can hold.
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
        """Add a buffer for a tensor that `read` loads if needed; gaps of `stride` hold zeros."""
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
        """Add a buffer with a tensor's exact content, whatever `Contents` applies to others."""
        shape = tuple(tensor.shape)
        stride = dense_stride(shape)
        known, _ = self._reserve(name, shape, tensor.dtype, stride)
        self._buffers[name] = literal_buffer(name, known, _flat_bytes(tensor, shape, stride, known))
        return View(buffer=name, shape=shape, stride=stride)

    def output(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None = None
    ) -> View:
        """Add a buffer for a kernel to fill."""
        stride = dense_stride(shape) if stride is None else stride
        known, size = self._reserve(name, shape, dtype, stride)
        self._buffers[name] = Buffer(name=name, dtype=known, size=size)
        return View(buffer=name, shape=shape, stride=stride)

    def known(self, name: str, dtype: torch.dtype) -> DType:
        """Return the DType of a torch dtype. Raises DumpError if no case can hold it."""
        try:
            return DType.of(dtype)
        except ValueError:
            own = str(dtype).removeprefix("torch.")
            have = ", ".join(DType)
            raise DumpError(f"{self._source}: {name} is {own}, which a case can't hold (only {have})") from None

    def dtype(self, view: View) -> DType:
        """Return the dtype of a view's buffer."""
        return self._buffers[view.buffer].dtype

    def is_drawn(self, view: View) -> bool:
        """Return whether a view's buffer is drawn from a seed."""
        return self._buffers[view.buffer].drawn is not None

    def buffers(self) -> tuple[Buffer, ...]:
        """Return all buffers, in the order of creation."""
        return tuple(self._buffers.values())

    def _reserve(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...]
    ) -> tuple[DType, int]:
        """Count the elements of a buffer for the tensor against the limit. Returns its DType and their number."""
        known = self.known(name, dtype)
        size = extent(shape, stride)
        self._left -= size * known.itemsize
        if self._left < 0:
            raise DumpError(
                f"{self._source}: with {name}, the case would exceed its limit of {MAX_BYTES >> 30} GiB; "
                "import a call with fewer or shorter requests"
            )
        return known, size


def _flat_bytes(dense: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], dtype: DType) -> bytes:
    """Return all bytes that a tensor with these strides spans."""
    bits = dense.contiguous().view(dtype.bits)
    if stride != dense_stride(shape):
        laid_out = torch.zeros(extent(shape, stride), dtype=dtype.bits)
        laid_out.as_strided(shape, stride).copy_(bits)
        bits = laid_out
    return ctypes.string_at(bits.data_ptr(), bits.nbytes) if bits.numel() else b""


def _like(recorded: torch.Tensor, seed: int) -> Drawn:
    """Return drawn content with the mean and standard deviation of the finite numbers in `recorded`."""
    numbers = recorded.to(torch.float32)
    # Not by brackets, which make a 64-bit index per axis and element.
    finite = numbers.masked_select(torch.isfinite(numbers))
    if not finite.numel():
        return Drawn(seed=seed)
    return Drawn(seed=seed, mean=float(finite.mean()), std=float(finite.std(correction=0)))
