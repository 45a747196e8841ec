"""The element types that attention kernels read and write."""

from enum import StrEnum

import torch


class DType(StrEnum):
    """An element type by torch's name, so that a case file reads like torch code."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3 = "float8_e4m3fn"
    FLOAT4_E2M1 = "float4_e2m1fn_x2"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    BOOL = "bool"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype of the same name."""
        dtype = getattr(torch, self.value)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def memory(self) -> torch.dtype:
        """The torch dtype of the memory that kernels get for such elements: two 4-bit numbers share a byte."""
        return torch.uint8 if self is DType.FLOAT4_E2M1 else self.torch_dtype

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.torch_dtype.itemsize

    @property
    def bits(self) -> torch.dtype:
        """The integer dtype of the same width, to move elements without interpreting them (torch can't index fp8)."""
        return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[self.itemsize]

    @property
    def nan(self) -> int:
        """The bits of a quiet NaN; for bytes, which have none, of the largest numbers. KeyError for other integers."""
        nan = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00, "float8_e4m3fn": 0x7F, "uint8": 0x77}
        return nan[self.value]

    @classmethod
    def of(cls, dtype: torch.dtype) -> "DType":
        """Return the member for a torch dtype. Raises ValueError if attention tensors never have that dtype."""
        return cls(str(dtype).removeprefix("torch."))
