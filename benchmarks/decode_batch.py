"""A batch of decodes over long KV: a correct kernel's output before its last rounding, and the judge's exact answer."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Final

import click
import torch

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.judge import judge
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.judge import STATISTICAL
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.kernels.native.ops import trtllm_batch_decode_with_kv_cache, workspace_bytes
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.values import Operand, draw

REQUESTS: Final = 4
HEAD_DIM: Final = 64
PAGE_SIZE: Final = 16
CONTRACT: Final = Contract(lse=LseBase.TWO)
_TILE: Final = 128

Found = Callable[[torch.Tensor, torch.Tensor | None], bool]
"""A function that decides whether an output is wrong: out [requests, heads, dim], lse [requests, heads] or None."""


@dataclass(frozen=True)
class DecodeBatch:
    """Requests of one query token and `length` keys each, without a mask.

    `evidence` has the output of a correct kernel with its exact answer and noise model. `unrounded` [requests, heads,
    dim] is the output in fp64, before rounding to its dtype.
    """

    length: int
    evidence: Evidence
    unrounded: torch.Tensor
    tiers: tuple[Tier, ...]

    @property
    def out(self) -> torch.Tensor:
        """The output [requests, heads, dim]."""
        return self.evidence.out

    @property
    def lse(self) -> torch.Tensor | None:
        """The LSE [requests, heads] in the contract's base, if the kernel has one."""
        return self.evidence.lse

    @property
    def budget(self) -> ErrorBudget:
        """The exact answer and the noise model."""
        return self.evidence.budget

    def tokens(self, request: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query [heads, dim], keys [length, kv heads, dim] and values of a request."""
        problem, own = self.budget.problem, slice(request * self.length, (request + 1) * self.length)
        return problem.query[request], problem.key[own], problem.value[own]

    def judges(self) -> dict[str, Found]:
        """Return a judge for each tier that applies, with the tier's share of alpha, and one for all tiers together."""
        return {**{tier: partial(self._found, (tier,)) for tier in self.tiers}, "all": partial(self._found, self.tiers)}

    def _found(self, tiers: Collection[Tier], out: torch.Tensor, lse: torch.Tensor | None) -> bool:
        evidence = replace(self.evidence, out=out, lse=lse)
        results = (judge(evidence) for tier, _, judge in STATISTICAL if tier in tiers)
        return any(each is not None and each.failure is not None for each in results)


def run_correct_kernel(length: int, dtype: DType, family: ValueFamily, rows: int, seed: int) -> DecodeBatch:
    """Draw a batch of `rows` rows, run a correct kernel on it, and judge the output. Raises ClickException if it fails.

    The fp32 kernel is the native one. For other dtypes, `rounded_weights` computes like a tensor-core kernel.
    """
    element = dtype.torch_dtype
    heads = rows // REQUESTS
    query, key, value = (
        draw(family, role, shape, seed=seed, stream=0).to(element)
        for role, shape in (
            (Operand.QUERY, (REQUESTS, heads, HEAD_DIM)),
            (Operand.KEY, (REQUESTS * length, 1, HEAD_DIM)),
            (Operand.VALUE, (REQUESTS * length, 1, HEAD_DIM)),
        )
    )
    geometry = Geometry(
        q_heads=heads,
        kv_heads=1,
        head_dim_qk=HEAD_DIM,
        head_dim_vo=HEAD_DIM,
        page_size=PAGE_SIZE,
        dtype=dtype,
        kv_dtype=dtype,
    )
    if dtype is DType.FLOAT32:
        noise = resolve("trtllm_mha").noise(dtype)
        unrounded, lse = _native(query, key, value, length)
    else:
        noise = NoiseModel.rounded_probabilities(element)
        unrounded, lse = rounded_weights(query, key, value, length)
    attended = tuple(
        Attended(request, query[request : request + 1], *(tokens.split(length)[request] for tokens in (key, value)))
        for request in range(REQUESTS)
    )
    output = Output(unrounded.to(element), lse, attended, HEAD_DIM**-0.5, 1.0)
    judgement = judge(
        output, geometry=geometry, contract=CONTRACT, noise=noise, step=0, mode="decode", kernel="", keep=True
    )
    if judgement.observations or judgement.kept is None:
        message = judgement.observations[0].message
        raise click.ClickException(f"the correct kernel fails, {dtype} {family} with {length} keys: {message}")
    tiers = tuple(tier for tier in Tier if tier in judgement.margins)
    return DecodeBatch(length, judgement.kept, unrounded.double(), tiers)


def rounded_weights(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute like a tensor-core kernel: fp32 products and sums, weights rounded to the inputs' dtype in between.

    Returns fp32 out [requests, heads, dim] and base-2 lse [requests, heads], from an online softmax over tiles of keys.
    """
    scale = query.shape[-1] ** -0.5
    rows = query.float()
    peak = torch.full(rows.shape[:2], -torch.inf)
    total = torch.zeros(rows.shape[:2])
    out = torch.zeros(*rows.shape[:2], value.shape[-1])
    keys, values = (tokens.view(rows.shape[0], length, -1) for tokens in (key, value))
    for begin in range(0, length, _TILE):
        tile = slice(begin, begin + _TILE)
        logits = (rows @ keys[:, tile].float().transpose(1, 2)).mul_(scale)
        higher = torch.maximum(peak, logits.amax(dim=-1))
        decay = torch.exp(peak - higher)
        weights = logits.sub_(higher.unsqueeze(-1)).exp_()
        total = total * decay + weights.sum(dim=-1)
        out = out * decay.unsqueeze(-1) + weights.to(query.dtype).float() @ values[:, tile].float()
        peak = higher
    return out / total.unsqueeze(-1), (peak + total.log()) / log(2.0)


def _native(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the native decode kernel. Return fp32 out [requests, heads, dim] and base-2 lse [requests, heads]."""
    pages = length // PAGE_SIZE
    cache = (key.view(-1, PAGE_SIZE, 1, HEAD_DIM), value.view(-1, PAGE_SIZE, 1, HEAD_DIM))
    requests, heads, _ = query.shape
    workspace = workspace_bytes(
        batch=requests, q_len=1, q_heads=heads, kv_heads=1, head_dim_vo=HEAD_DIM, max_seq_len=length
    )
    out, lse = trtllm_batch_decode_with_kv_cache(
        query,
        cache,
        torch.zeros(workspace.total, dtype=torch.uint8),
        torch.arange(requests * pages, dtype=torch.int32).view(requests, pages),
        torch.full((requests,), length, dtype=torch.int32),
        length,
        HEAD_DIM**-0.5,
        kv_layout="NHD",
        return_lse=True,
    )
    return out, lse
