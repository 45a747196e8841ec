"""Blocks of tokens in OpenVINO's layouts: plain, or in u8 with a scale and a zero point for each token or channel.

An encoded number is scale * (code - zero point) (attn_quant.cpp, quant_u8; executor_pa.cpp, pack_32NxK). For each
token, scale and zero point precede its codes; for each channel of a block, all scales and zero points precede them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.libraries.requests import DenseRequest

BLOCK = 32
"""Tokens of a block on the CPU."""

_CODES = 255
_NO_RANGE = 1e-4
"""The scale of equal numbers."""

_PARAMETERS = 8
"""Bytes of a scale and a zero point."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of each request, in order. Block 0 belongs to none."""

    ids: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, requests: Sequence[DenseRequest]) -> "Blocks":
        """Choose blocks with descending ids, so that tokens don't follow each other in memory."""
        counts = [-(-request.kv_len // BLOCK) for request in requests]
        return cls(torch.arange(sum(counts), 0, -1).split(counts))

    def filled(self, tokens: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fill float32 blocks [blocks, kv_heads, 32, dim] with the first tokens of each request; the rest is NaN."""
        _, heads, dim = tokens[0].shape
        blocks = torch.full((1 + sum(map(len, self.ids)), heads, BLOCK, dim), float("nan"))
        for ids, mine in zip(self.ids, tokens, strict=True):
            at = torch.arange(len(mine))
            blocks[ids[at // BLOCK], :, at % BLOCK] = mine.float()
        return blocks

    def tokens(self, blocks: torch.Tensor, request: int, count: int) -> torch.Tensor:
        """Return the first `count` tokens [count, kv_heads, dim] of a request."""
        at = torch.arange(count)
        return blocks[self.ids[request][at // BLOCK], :, at % BLOCK]


@dataclass(frozen=True)
class Codec:
    """How blocks are held. `steps` is how far a number may be from its code, in steps of its block's range of codes."""

    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]
    axis: int
    steps: float

    def held(self, blocks: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        """Decode the numbers that `blocks` hold; those of `true`, as far as allowed, where they are wrong."""
        low, high = _range(true, self.axis)
        allowed = self.steps * (high - low) / _CODES + 2.0**-20 * torch.maximum(low.abs(), high.abs())
        held = self.decode(blocks)
        return torch.where(held.isnan(), true, held).clamp(true - allowed, true + allowed)


def _range(blocks: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and largest number along an axis, which is kept; NaN if there are none."""
    absent = blocks.isnan()
    low = blocks.masked_fill(absent, torch.inf).amin(axis, keepdim=True)
    high = blocks.masked_fill(absent, -torch.inf).amax(axis, keepdim=True)
    nothing = absent.all(axis, keepdim=True)
    return low.masked_fill(nothing, torch.nan), high.masked_fill(nothing, torch.nan)


def _quantised(blocks: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise blocks to scales, zero points and codes."""
    low, high = _range(blocks, axis)
    scale = (high - low) / _CODES
    scale = scale.masked_fill(scale == 0, _NO_RANGE)
    zero = -low / scale
    return scale, zero, (blocks / scale + zero).round().nan_to_num(_CODES).clamp(0, _CODES).to(torch.uint8)


def _encode_tokens(blocks: torch.Tensor) -> torch.Tensor:
    scale, zero, codes = _quantised(blocks, -1)
    return torch.cat((scale.contiguous().view(torch.uint8), zero.contiguous().view(torch.uint8), codes), -1)


def _decode_tokens(blocks: torch.Tensor) -> torch.Tensor:
    parameters = blocks[..., :_PARAMETERS].contiguous().view(torch.float32)
    scale, zero = parameters[..., :1], parameters[..., 1:]
    return (blocks[..., _PARAMETERS:] - zero) * scale


def _encode_channels(blocks: torch.Tensor) -> torch.Tensor:
    scale, zero, codes = _quantised(blocks, -2)
    parts = [part.contiguous().view(torch.uint8).flatten(2) for part in (scale, zero, codes)]
    return torch.cat(parts, -1).view(*blocks.shape[:2], _PARAMETERS + BLOCK, blocks.shape[3])


def _decode_channels(blocks: torch.Tensor) -> torch.Tensor:
    parameters = blocks[:, :, :_PARAMETERS].flatten(2).contiguous().view(torch.float32)
    channels = blocks.shape[3]
    scale, zero = parameters[..., None, :channels], parameters[..., None, channels:]
    return (blocks[:, :, _PARAMETERS:] - zero) * scale


BY_TOKEN = Codec(_encode_tokens, _decode_tokens, axis=-1, steps=0.51)
BY_CHANNEL = Codec(_encode_channels, _decode_channels, axis=-2, steps=1.02)
"""Tokens that are added to a block change its ranges, so that the earlier ones are encoded again."""


def plain(dtype: torch.dtype) -> Codec:
    """Make a codec that keeps numbers as they are."""
    return Codec(lambda blocks: blocks.to(dtype), lambda blocks: blocks.float(), axis=-1, steps=0.0)
