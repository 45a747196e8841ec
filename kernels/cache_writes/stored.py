"""The numbers that a KV cache may hold for a value: itself, or its roundings to fp8; and the scales of these."""

from dataclasses import dataclass

import torch

from attnfuzz.reference import nvfp4
from attnfuzz.reference.dtypes import DType

FP32_ERROR = 2.0**-22
"""Relative error of a quotient in fp32 that is computed as a product with a reciprocal: three roundings of 2^-24."""

_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_FAR = 2 * torch.finfo(torch.float32).max


Scale = float | torch.Tensor


@dataclass(frozen=True)
class Conversion:
    """How a writer converts values to fp8 e4m3: to the number nearest to value / scale.

    `error` is the relative error of the quotient before that rounding. With `saturates`, larger numbers than 448
    become 448, otherwise they may also become NaN. A writer that computes scales may raise them to `least_scale`.
    """

    error: float = FP32_ERROR
    saturates: bool = True
    least_scale: float = 1e-6

    def bounds(self, values: torch.Tensor, scale: Scale, dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smallest and the largest number that a cache of `dtype` may hold for each of `values`.

        Both are `values` itself if it has that dtype: a copy keeps all bits. Otherwise the cache is one of fp8. A
        tensor of scales broadcasts to `values`.
        """
        if values.dtype == dtype.torch_dtype:
            return values, values
        return self.between(values.double(), values.double(), scale, dtype)

    def between(
        self, least: torch.Tensor, most: torch.Tensor, scale: Scale, dtype: DType
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bound the numbers that a cache of `dtype` may hold for numbers from `least` to `most`.

        A cache that is not one of fp8 has no scale.
        """
        if dtype is not DType.FLOAT8_E4M3:
            low, high = (each.float().to(dtype.torch_dtype) for each in (least, most))
            return low, high
        # Infinity less its slack would be NaN, and so would be 0 / 0 in a row of zeros.
        least, most = ((each / scale).where(each != 0, 0.0).clamp(-_FAR, _FAR) for each in (least, most))
        low, high = _rounded(least - least.abs() * self.error), _rounded(most + most.abs() * self.error)
        if not self.saturates:
            # One of both bounds may be NaN, which allows NaN.
            low, high = (
                torch.where(least < -_LARGEST, torch.nan, low.float()).to(low.dtype),
                torch.where(most > _LARGEST, torch.nan, high.float()).to(high.dtype),
            )
        return low, high

    def scales(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bound the scales, float32 [tokens, heads, 1], that a writer may compute for finite values.

        It is the largest magnitude over 448, computed in fp32. A row of zeros is 0 under any scale: up to 1 is allowed.
        """
        due = values.double().abs().amax(dim=-1, keepdim=True) / _LARGEST
        high = (due * (1 + self.error)).clamp(min=self.least_scale).where(due > 0, 1.0)
        return (due * (1 - self.error)).float(), high.float()

    def scales_held(self, values: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """Return the scales by which `values` have to be divided: those that the cache holds, where they are usable.

        A wrong scale is a failure of its own, and need not make elements wrong.
        """
        due, _ = self.scales(values)
        return torch.where(held.isfinite() & (held > 0), held, due.clamp(min=self.least_scale)).double()

    def block_scales(self, values: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Bound the scale of each block of NVFP4, e4m3 [tokens, heads, dim / 16], beside `scale`."""
        largest = values.double().unflatten(-1, (-1, nvfp4.BLOCK)).abs().amax(dim=-1)
        due = largest / nvfp4.LARGEST / scale
        return _rounded(due * (1 - self.error)), _rounded(due * (1 + self.error))

    def block_numbers(
        self, values: torch.Tensor, scale: float, held: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bound the number of E2M1 for each of `values`, as e4m3, under the block scales `held`.

        Numbers are 0 under a scale of 0. NaN is no scale: the due one counts.
        """
        due, _ = self.block_scales(values, scale)
        by = nvfp4.spread(torch.where(held.float().isnan(), due.float(), held.float())).double() * scale
        quotient = (values.double() / by).where(by != 0, 0.0)
        slack = quotient.abs() * self.error
        low, high = (
            nvfp4.numbers(nvfp4.rounded(each.float())).to(torch.float8_e4m3fn)
            for each in (quotient - slack, quotient + slack)
        )
        return low, high


def _rounded(numbers: torch.Tensor) -> torch.Tensor:
    """Round to the nearest fp8 numbers. The cast to fp32 comes first: its error is part of FP32_ERROR."""
    return numbers.float().clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
