"""Packed latents: numbers in e4m3 with a scale for each tile of them, and rotary numbers in bfloat16.

The formats are those of `KvFormat`.
"""

from typing import Final

import torch

RANK: Final = 512
ROPE: Final = 64
_TILE: Final = 128
_TILES: Final = RANK // _TILE


def pack(latents: torch.Tensor) -> torch.Tensor:
    """Quantise latents [n, 576] into uint8 [n, 656]."""
    tiles = latents[:, :RANK].float().unflatten(1, (_TILES, _TILE))
    scales = tiles.abs().amax(-1).clamp_min(2.0**-20) / 448
    numbers = (tiles / scales.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(1)
    rope = latents[:, RANK:].to(torch.bfloat16)
    return torch.cat([each.contiguous().view(torch.uint8) for each in (numbers, scales, rope)], dim=1)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return the latents of uint8 [n, 656] in float64 [n, 576]."""
    numbers, scales, rope = packed.split([RANK, 4 * _TILES, 2 * ROPE], dim=1)
    tiles = numbers.contiguous().view(torch.float8_e4m3fn).double().unflatten(1, (_TILES, _TILE))
    dequantised = tiles * scales.contiguous().view(torch.float32).double().unsqueeze(-1)
    return torch.cat((dequantised.flatten(1), rope.contiguous().view(torch.bfloat16).double()), dim=1)


PAGED_RANK: Final = 448
_PAGED_TILE: Final = 64
_PAGED_TILES: Final = PAGED_RANK // _PAGED_TILE
PAGED_DATA: Final = PAGED_RANK + 2 * ROPE
PAGED_SCALES: Final = _PAGED_TILES + 1
_BIAS: Final = 127


def pack_paged(latents: torch.Tensor) -> torch.Tensor:
    """Quantise latents [n, 512] into uint8 [n, 584]: the data of each, then its scales with a byte of 0."""
    tiles = latents[:, :PAGED_RANK].float().unflatten(1, (_PAGED_TILES, _PAGED_TILE))
    exponents = torch.frexp(tiles.abs().amax(-1).clamp_min(2.0**-20) / 448).exponent
    numbers = torch.ldexp(tiles, -exponents.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(1)
    rope = latents[:, PAGED_RANK:].to(torch.bfloat16)
    scales = torch.nn.functional.pad(exponents + _BIAS, (0, 1)).to(torch.uint8)
    return torch.cat((*(each.contiguous().view(torch.uint8) for each in (numbers, rope)), scales), dim=1)


def unpack_paged(packed: torch.Tensor) -> torch.Tensor:
    """Return the latents of uint8 [n, 584] in float64 [n, 512]."""
    numbers, rope, scales = packed.split([PAGED_RANK, 2 * ROPE, PAGED_SCALES], dim=1)
    tiles = numbers.contiguous().view(torch.float8_e4m3fn).double().unflatten(1, (_PAGED_TILES, _PAGED_TILE))
    dequantised = torch.ldexp(tiles, scales[:, :_PAGED_TILES].int().unsqueeze(-1) - _BIAS)
    return torch.cat((dequantised.flatten(1), rope.contiguous().view(torch.bfloat16).double()), dim=1)


def in_pages(rows: torch.Tensor, page_size: int) -> torch.Tensor:
    """Arrange uint8 [slots, 584] in pages [pages, page_size * 584], the scales of a page behind its data."""
    pages = rows.unflatten(0, (-1, page_size))
    data, scales = pages.split([PAGED_DATA, PAGED_SCALES], dim=2)
    return torch.cat((data.flatten(1), scales.flatten(1)), dim=1)
