"""What q, K and V hold: the recipes of the value families.

Every element fits fp8 e4m3 (up to 448) and fp16 after a cast. A token's values depend on its index and never on how
many tokens are drawn, so that shortening a request leaves the others alone.
"""

from collections.abc import Callable
from enum import StrEnum
from math import prod, sqrt

import torch

from attnfuzz.reference.case import ValueFamily


class Role(StrEnum):
    """Which operand is drawn."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"


_ROLE_SALT = {Role.QUERY: 0x51, Role.KEY: 0x4B, Role.VALUE: 0x56}
_MASK = (1 << 64) - 1
_generator = torch.Generator()

_LARGE = 12.0
"""Standard deviation of q and K with large logits: theirs is then 144, after the division by sqrt(head_dim_qk)."""

_SMALL = 0.05
"""Standard deviation of q with one-hot values: the softmax stays nearly uniform, so that every token has its share."""

_PEAK = 4.0
"""Standard deviation of what the shared direction adds to a peaked token's logits, above their noise of about 1."""

_PEAK_EVERY = 16
"""Tokens at the edges of pages of this size can be peaked: the commonest page size, or a fraction of a larger one."""

_AMPLITUDES = 8
"""Tags take the values 1 + i / 8, which fp8 e4m3 holds exactly."""


def draw(family: ValueFamily, role: Role, shape: tuple[int, ...], *, seed: int, stream: int) -> torch.Tensor:
    """Values of one operand, float32 of `shape` [tokens, heads, dim]; a function of (family, role, seed, stream).

    NORMAL is standard normal. PEAKED lets a few keys, many of them at page edges, take nearly all the weight. CONSTANT
    has the same key and value at every token, so that the output is that value. ONE_HOT gives each token's value one
    element, whose position and size tell token and head, under a nearly uniform softmax. LARGE_LOGITS has logits of
    several hundred. ZEROS has q = 0 and values of +1 and -1, so that the output is a count. ValueError unless `shape`
    has three axes.
    """
    if len(shape) != 3:
        raise ValueError(f"shape {shape} has {len(shape)} axes: give [tokens, heads, dim]")
    _generator.manual_seed(_mixed(seed, stream, _ROLE_SALT[role]))
    return _RECIPES[family](role, shape)


def _mixed(*parts: int) -> int:
    """A seed from several numbers. Torch's CPU generator keeps its low 32 bits, so these must depend on all parts.

    The mixing step is splitmix64's (Steele, Lea and Flood, OOPSLA 2014).
    """
    state = 0
    for part in parts:
        state = (state ^ part) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def _normal(shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal numbers, of which a longer draw has the same first ones.

    Torch fills blocks of 16 and draws an incomplete last block again, so only whole blocks keep the prefix.
    """
    count = prod(shape)
    blocks = -(-count // 16) * 16
    return torch.empty(blocks).normal_(generator=_generator)[:count].view(shape)


def _normal_values(_role: Role, shape: tuple[int, ...]) -> torch.Tensor:
    return _normal(shape)


def _peaked(role: Role, shape: tuple[int, ...]) -> torch.Tensor:
    if role is Role.VALUE:
        return _normal(shape)
    tokens, heads, dim = shape
    if role is Role.QUERY:
        return _normal(shape) + 1.0
    drawn = _normal((tokens, 1 + heads * dim))
    position = torch.arange(tokens) % _PEAK_EVERY
    at_edge = (position == 0) | (position == _PEAK_EVERY - 1)
    push = drawn[:, :1] * at_edge.unsqueeze(-1) * (_PEAK / sqrt(dim))
    return drawn[:, 1:].reshape(shape) + push.unsqueeze(-1)


def _constant(role: Role, shape: tuple[int, ...]) -> torch.Tensor:
    if role is Role.QUERY:
        return _normal(shape)
    return _normal((1, *shape[1:])).repeat(shape[0], 1, 1)


def _one_hot(role: Role, shape: tuple[int, ...]) -> torch.Tensor:
    if role is Role.QUERY:
        return _normal(shape) * _SMALL
    if role is Role.KEY:
        return _normal(shape)
    tokens, heads, dim = shape
    token = torch.arange(tokens).view(-1, 1, 1)
    head = torch.arange(heads).view(1, -1, 1)
    amplitude = 1.0 + (token // dim + head) % _AMPLITUDES / _AMPLITUDES
    return torch.where(torch.arange(dim) == (token + head) % dim, amplitude, 0.0)


def _large_logits(role: Role, shape: tuple[int, ...]) -> torch.Tensor:
    return _normal(shape) if role is Role.VALUE else _normal(shape) * _LARGE


def _zeros(role: Role, shape: tuple[int, ...]) -> torch.Tensor:
    if role is Role.QUERY:
        return torch.zeros(shape)
    drawn = _normal(shape)
    return torch.where(drawn < 0, -1.0, 1.0) if role is Role.VALUE else drawn


_RECIPES: dict[ValueFamily, Callable[[Role, tuple[int, ...]], torch.Tensor]] = {
    ValueFamily.NORMAL: _normal_values,
    ValueFamily.PEAKED: _peaked,
    ValueFamily.CONSTANT: _constant,
    ValueFamily.ONE_HOT: _one_hot,
    ValueFamily.LARGE_LOGITS: _large_logits,
    ValueFamily.ZEROS: _zeros,
}
