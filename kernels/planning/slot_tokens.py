"""The keys and values of a case's sequences, drawn once for each sequence's longest step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import torch

from attnfuzz.kernels.interface import transfers
from attnfuzz.kernels.interface.backend import Attended
from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.reference import nvfp4
from attnfuzz.reference.cache_scales import dequantised, draw_scales, quantised
from attnfuzz.reference.case import Case, Granularity, Request, Step
from attnfuzz.reference.chance import HOST, TokenRun
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.magnitudes import at_magnitude
from attnfuzz.reference.masks import mask_of
from attnfuzz.reference.values import Operand, draw_runs

_NO_SLOT = (1 << 32) - 1
"""Slot number for values of no request."""


def stream_of(part: int, slot: int = _NO_SLOT) -> int:
    """Return the random stream of a sequence's values in one part of a case: a step's queries, or a set of tokens.

    Each sequence has its own streams, so a request's values depend neither on the other requests of its batch nor on
    their order or lengths: batches can be permuted, extended and cut down around it.
    """
    return part << 32 | slot


class SlotTokens:
    """Keys [n, heads, dim_k] and values [n, heads, dim_v] of all sequences, packed in ascending order.

    `spans` are the ranges of the sequences' tokens; `extra` more tokens follow, which belong to none. `latent` values
    are the first elements of the keys. `part` distinguishes several sets of tokens of one case. The tensors are on the
    host, or on `device` if they are large.

    `scaled` tokens are stored in a cache whose scales are finer than a tensor: `key_scale` and `value_scale` are then
    float32 [n, heads, 1], otherwise None. For NVFP4, they are e4m3 [n, heads, dim / 16], and tokens are bytes.
    """

    def __init__(
        self,
        case: Case,
        *,
        heads: int,
        key_dim: int,
        value_dim: int,
        dtype: DType,
        part: int = 0,
        extra: int = 0,
        latent: bool = False,
        scaled: bool = False,
        device: torch.device = HOST,
    ) -> None:
        self._case = case
        lengths = case.slot_lengths()
        begins = running_sum(lengths.values())
        self.spans = {slot: range(*ends) for slot, ends in zip(lengths, pairwise(begins), strict=True)}
        self.extra = range(begins[-1], begins[-1] + extra)
        runs = [TokenRun(stream_of(part, slot), length) for slot, length in lengths.items()]
        runs.append(TokenRun(stream_of(part), extra))
        nbytes = self.extra.stop * heads * (key_dim + value_dim) * dtype.itemsize
        where = device if nbytes >= transfers.STAYS else HOST

        def drawn(role: Operand, dim: int, scale: float) -> tuple[torch.Tensor, torch.Tensor | None]:
            values = draw_runs(case.values, role, runs, heads, dim, seed=case.seed, device=where)
            values = at_magnitude(values, case.magnitude, role, case.geometry.dtype)
            if not scaled:
                return values.to(dtype.torch_dtype), None
            granularity = case.scales.granularity
            if granularity is Granularity.BLOCK:
                blocks = nvfp4.block_scales(values)
                return nvfp4.quantised(values, blocks), blocks
            scales = draw_scales(case.values, role, granularity, runs, heads, seed=case.seed, device=where)
            return quantised(values, scales), scales * scale

        self.key, self.key_scale = drawn(Operand.KEY, key_dim, case.scales.k)
        if latent:
            self.value, self.value_scale = self.key[..., :value_dim], None
        else:
            self.value, self.value_scale = drawn(Operand.VALUE, value_dim, case.scales.v)

    @classmethod
    def cached(cls, case: Case, *, extra: int = 0, device: torch.device = HOST) -> Self:
        """Return the tokens in the KV cache of the case's geometry: latents if it has them."""
        geometry = case.geometry
        return cls(
            case,
            heads=geometry.kv_heads,
            key_dim=geometry.head_dim_qk,
            value_dim=geometry.head_dim_vo,
            dtype=geometry.kv_dtype,
            extra=extra,
            latent=geometry.latent is not None,
            scaled=case.scales.granularity is not Granularity.TENSOR,
            device=device,
        )

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """Keys and values, with their scales if these are tensors."""
        return tuple(each for each in (self.key, self.value, self.key_scale, self.value_scale) if each is not None)

    def keys(self, slot: int, length: int) -> torch.Tensor:
        """Return keys of a sequence's first `length` tokens [length, heads, dim_k]."""
        return self.key[self.spans[slot].start :][:length]

    def values(self, slot: int, length: int) -> torch.Tensor:
        """Return values of a sequence's first `length` tokens [length, heads, dim_v]."""
        return self.value[self.spans[slot].start :][:length]

    def packed(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of all requests of `step`, packed: [kv tokens, heads, dim] each."""
        lengths = [(request.slot, request.kv_len) for request in step.requests]
        # The empty slice is for a step without requests.
        return (
            torch.cat([self.key[:0], *(self.keys(slot, length) for slot, length in lengths)]),
            torch.cat([self.value[:0], *(self.values(slot, length) for slot, length in lengths)]),
        )

    def attended(self, step: Step, query: torch.Tensor, first_rows: Sequence[int]) -> tuple[Attended, ...]:
        """Return the attention expected for each request of `step`.

        The queries of a request lie in `query` [rows, ...], starting at its entry in `first_rows`.
        """
        return tuple(
            Attended(
                first_row=first,
                query=query[first : first + request.q_len],
                key=self._meant(self.key, self.key_scale, request),
                value=self._meant(self.value, self.value_scale, request),
                mask=mask_of(self._case, step, request),
            )
            for first, request in zip(first_rows, step.requests, strict=True)
        )

    def _meant(self, tokens: torch.Tensor, scales: torch.Tensor | None, request: Request) -> torch.Tensor:
        """Return the tokens of a request as attention gets them."""
        begin = self.spans[request.slot].start
        own = slice(begin, begin + request.kv_len)
        return tokens[own] if scales is None else dequantised(tokens[own], scales[own])
