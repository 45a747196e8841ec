"""NVFP4 in torch: 4-bit numbers (OCP E2M1), two in a byte, with a scale in e4m3 for every 16 of a row.

A value is its number times the scale of its block, times one scale in fp32 for the tensor. The first number of a byte
is in its low bits (FlashInfer's nvfp4_append_quantize_block, include/flashinfer/page.cuh).

Block scales of values may be *swizzled*, as TRT-LLM's attention kernels need them: in each page and head, the scale of
slot t and block s, of S in a row, is at (t // 4) * 4 S + 4 s + t % 4 (`nvfp4_quantize_paged_kv_cache`,
flashinfer/quantization/fp4_quantization.py). Those of keys never are.
"""

import torch

BLOCK = 16
"""Elements of a row that share a scale."""

INTERLEAVED = 4
"""Number of slots whose scales are adjacent in the swizzled layout."""

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitude of each code; the fourth bit is the sign."""

LARGEST = MAGNITUDES[-1]

_VALUES = torch.tensor([sign * each for sign in (1.0, -1.0) for each in MAGNITUDES])

_UP_TO, _BELOW = (0.25, 1.25, 2.5, 5.0), (0.75, 1.75, 3.5)
"""Upper ends of the codes' intervals: ties go to the even code."""


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Return the uint8 codes of the numbers nearest to `values`: ties to even, saturated, NaN as the largest."""
    magnitudes = values.abs().unsqueeze(-1)
    up_to, below = (torch.tensor(edges, device=values.device) for edges in (_UP_TO, _BELOW))
    code = (~(magnitudes <= up_to)).sum(-1) + (~(magnitudes < below)).sum(-1)
    return (code | values.signbit().long() << 3).to(torch.uint8)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Return codes [..., n] as bytes [..., n / 2]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def unpacked(data: torch.Tensor) -> torch.Tensor:
    """Return bytes [..., n / 2] as e4m3 numbers [..., n]; e4m3 can represent all numbers of E2M1."""
    values = _VALUES.to(torch.float8_e4m3fn).view(torch.uint8).to(data.device)
    codes = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)
    found: torch.Tensor = values[codes.to(torch.int32)]
    return found.view(torch.float8_e4m3fn)


def in_rows(swizzled: torch.Tensor) -> torch.Tensor:
    """Return scales as [pages, slots, heads, n], from a swizzled view [pages, slots / 4, 4, heads, 4, n / 4]."""
    return swizzled.flatten(1, 2).flatten(-2)


def numbers(codes: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers of codes."""
    found: torch.Tensor = _VALUES.to(codes.device)[codes.to(torch.int32)]
    return found


def block_scales(values: torch.Tensor) -> torch.Tensor:
    """Return the scale of each block: its largest magnitude over 6, in e4m3 [..., n / 16]."""
    largest: torch.Tensor = values.float().unflatten(-1, (-1, BLOCK)).abs().amax(dim=-1) / LARGEST
    return largest.clamp(max=torch.finfo(torch.float8_e4m3fn).max).to(torch.float8_e4m3fn)


def spread(scales: torch.Tensor) -> torch.Tensor:
    """Return the scale of each element of a row, float32 [..., n]."""
    return scales.float().repeat_interleave(BLOCK, dim=-1)


def quantised(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return `values` divided by the scales of their blocks, as bytes; 0 where a scale is 0."""
    by = spread(scales)
    return packed(rounded((values.float() / by).where(by != 0, 0.0)))


def dequantised(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers in bytes times the scales of their blocks, exactly, in float32."""
    return unpacked(data).float() * spread(scales)
