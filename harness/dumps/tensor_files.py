"""The tensors of a dump, which stay on disk until they are used.

Both formats are mapped into memory, so only used parts are read. Nothing in a file is executed: torch takes only
tensors from pickles (`weights_only`).
"""

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open

from attnfuzz.harness.dumps.folders import unreadable
from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor

MAX_PICKLE = 64 << 20
"""Most bytes of the pickle in a .pt file, which names the tensors: about 300 each."""

SUFFIXES: Final = (".pt", ".safetensors")
"""Suffixes of FlashInfer's tensor files."""


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors by name, opened on first use."""

    path: Path

    @cached_property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """All tensors, as views of the mapped file. Raises DumpError."""
        try:
            if self.path.suffix == ".pt":
                return _pickled(self.path)
            with safe_open(self.path, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
        except DumpError:
            raise
        except OSError as error:
            raise unreadable(self.path, error) from error
        except pickle.UnpicklingError as error:
            raise DumpError(
                f"{self.path} holds more than tensors, and is not loaded for safety: FlashInfer did not write it"
            ) from error
        except Exception as error:  # foreign bytes make torch, zipfile and safetensors raise nearly anything
            reason = str(error).split("\n", 1)[0][:200] or type(error).__name__
            if "unable to mmap" in reason:
                raise DumpError(
                    f"{self.path} can't be mapped ({reason}): Linux only maps files that fit into memory and "
                    "swap; set vm.overcommit_memory to 1, or use a larger machine"
                ) from error
            raise DumpError(f"{self.path} is cut off or damaged ({reason}): copy the dump again") from error

    def tensor(
        self, key: str, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None
    ) -> ForeignTensor:
        """Return the tensor `key`, as the metadata describes it."""
        return ForeignTensor(shape, dtype, stride, lambda: self._stored(key, shape, dtype))

    def _stored(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Read the tensor from the file. Raises DumpError if it contradicts the metadata."""
        path, tensor = self.path, self.tensors.get(key)
        if tensor is None:
            raise DumpError(f"{path} has no tensor {key}, which the metadata names: copy the dump again")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise DumpError(f"tensor {key} of {path} is {tensor.layout} on {tensor.device}, which can't be read")
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise DumpError(
                f"tensor {key} of {path} is {_described(tuple(tensor.shape), tensor.dtype)}, but "
                f"{_described(shape, dtype)} in its metadata: they are from different calls"
            )
        # A stride of 0 lets a few bytes pass for terabytes.
        if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise DumpError(f"tensor {key} of {path} has more elements than the file: its elements overlap")
        return tensor.detach()


def _pickled(path: Path) -> Mapping[str, torch.Tensor]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            # torch.save compresses nothing; compressed entries may unpack to any size.
            if entry.compress_type != zipfile.ZIP_STORED:
                raise DumpError(f"{path} has compressed entries, which torch.save never writes, so it is not read")
            if entry.filename.endswith(".pkl") and entry.file_size > MAX_PICKLE:
                raise DumpError(f"{path} has a pickle of {entry.file_size >> 20} MiB, so it is not read")
    content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        raise DumpError(f"{path} holds something other than named tensors: FlashInfer did not write it")
    return content


def _described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{dtype} {list(shape)}".removeprefix("torch.")
