"""A simulated correct kernel, and the way to its verdict: `layer`."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest
import torch

from attnfuzz.harness.judge import Judgement, judge
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.evidence import RealRows, packed_problem
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.tiers import ALL_TIERS, ALPHA, Tier
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.reference.attention import attend
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.values import Operand, draw


@dataclass(frozen=True)
class Layer:
    """A batch of `lengths` (q_len, kv_len), and the precision of the kernel that attends to it.

    `probabilities` is the dtype of the weights in the second product, `splits` the parts of the KV that are merged,
    from partial outputs in fp32 or, `merged_rounded`, in `dtype`; `lead` is how far the kernel's idea of the largest
    logit is above the truth. `sinks_first` is for a kernel whose first part alone counts the sink as a logit. `model`
    is the noise model, if it does not follow from these.
    """

    lengths: tuple[tuple[int, int], ...] = ((1, 50), (1, 20), (2, 33), (1, 7))
    family: ValueFamily = ValueFamily.NORMAL
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None
    probabilities: torch.dtype = torch.float32
    q_heads: int = 8
    kv_heads: int = 2
    dim: int = 64
    seed: int = 0
    window_left: int = -1
    soft_cap: float = 0.0
    softmax: float = 1.0
    bmm2_scale: float = 1.0
    sinks: torch.Tensor | None = None
    splits: int = 1
    merged_rounded: bool = False
    lead: float = 0.0
    sinks_first: bool = False
    tile: int = 32
    model: NoiseModel | None = None

    @property
    def bmm1_scale(self) -> float:
        return self.softmax / math.sqrt(self.dim)

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            head_dim_qk=self.dim,
            head_dim_vo=self.dim,
            page_size=16,
            dtype=DType.of(self.dtype),
            kv_dtype=DType.of(self.kv_dtype or self.dtype),
            window_left=self.window_left,
            sinks=self.sinks is not None,
            soft_cap=self.soft_cap,
        )

    @property
    def noise(self) -> NoiseModel:
        if self.model is not None:
            return self.model
        if self.probabilities is torch.float32:
            return NoiseModel.fp32_arithmetic()
        rounded = NoiseModel.rounded_probabilities(self.probabilities)
        return (
            msgspec.structs.replace(rounded, peak=rounded.probabilities) if self.lead or self.sinks_first else rounded
        )

    def run(self) -> Output:
        """The output of a correct kernel, its LSE in base 2."""
        attended, parts, row = [], [], 0
        for stream, (q_len, kv_len) in enumerate(self.lengths):
            query = self._drawn(Operand.QUERY, q_len, self.q_heads, stream).to(self.dtype)
            key, value = (
                self._drawn(role, kv_len, self.kv_heads, stream).to(self.kv_dtype or self.dtype)
                for role in (Operand.KEY, Operand.VALUE)
            )
            attended.append(Attended(row, query, key, value))
            parts.append(self._attend(query.float(), key.float(), value.float()))
            row += q_len
        return Output(
            torch.cat([out for out, _ in parts]).to(self.dtype),
            torch.cat([lse for _, lse in parts]) / math.log(2),
            tuple(attended),
            self.bmm1_scale,
            self.bmm2_scale,
            roundings=self.splits if self.merged_rounded else 1,
            sinks=self.sinks,
        )

    def _drawn(self, role: Operand, tokens: int, heads: int, stream: int) -> torch.Tensor:
        return draw(self.family, role, (tokens, heads, self.dim), seed=self.seed, stream=stream)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 out [q, heads, dim] and natural lse [q, heads] of one request."""
        q_len, kv_len = query.shape[0], key.shape[0]
        own = torch.arange(q_len).unsqueeze(1) + kv_len - q_len
        visible = torch.arange(kv_len) <= own
        if self.window_left >= 0:
            visible &= torch.arange(kv_len) >= own - self.window_left
        group = self.q_heads // self.kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        out, lse = torch.zeros(self.q_heads, q_len, self.dim), torch.full((self.q_heads, q_len), -math.inf)
        if self.sinks is not None:
            lse = self.sinks.unsqueeze(1).expand(-1, q_len)
        cuts = [kv_len * part // self.splits for part in range(self.splits + 1)]
        for begin, end in pairwise(cuts):
            least = self.sinks if self.sinks_first and not begin else None
            part_out, part_lse = self._part(query, key[begin:end], value[begin:end], visible[:, begin:end], least)
            both = torch.logaddexp(lse, part_lse)
            before, after = (torch.exp(one - both.clamp(min=-1e30)).unsqueeze(-1) for one in (lse, part_lse))
            out, lse = out * before + part_out * after, both
            if self.merged_rounded:
                out = out.to(self.dtype).float()
        return out.transpose(0, 1), lse.transpose(0, 1)

    def _part(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        visible: torch.Tensor,
        least: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One split by online softmax over tiles: out [heads, q, dim], scaled, and natural lse [heads, q].

        `least` [heads] is where the largest logit begins.
        """
        heads, q_len = query.shape[1], query.shape[0]
        peak, total = torch.full((heads, q_len), -1e30), torch.zeros(heads, q_len)
        if least is not None:
            peak = peak.maximum(least.unsqueeze(1))
        out = torch.zeros(heads, q_len, value.shape[2])
        for begin in range(0, key.shape[0], self.tile):
            tile = slice(begin, begin + self.tile)
            logits = torch.einsum("qhd,khd->hqk", query, key[tile]) * self.bmm1_scale
            if self.soft_cap:
                logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
            logits = logits.masked_fill(~visible[:, tile], -math.inf)
            higher = torch.maximum(peak, logits.amax(-1) + self.lead)
            weights, decay = torch.exp(logits - higher.unsqueeze(-1)), torch.exp(peak - higher)
            total = total * decay + weights.sum(-1)
            rounded = weights.to(self.probabilities).float()
            out = out * decay.unsqueeze(-1) + torch.einsum("hqk,khd->hqd", rounded, value[tile])
            peak = higher
        out = torch.where(total.unsqueeze(-1) > 0, out / total.unsqueeze(-1), 0.0) * self.bmm2_scale
        if self.merged_rounded:
            out = out.to(self.dtype).float()
        return out, torch.where(total > 0, peak + total.log(), -math.inf)

    def judged(
        self,
        output: Output,
        contract: Contract | None = None,
        *,
        strict: bool = False,
        keep: bool = False,
        tiers: Collection[Tier] = ALL_TIERS,
    ) -> Judgement:
        return judge(
            output,
            geometry=self.geometry,
            contract=contract or Contract(lse=LseBase.TWO),
            noise=self.noise,
            step=3,
            mode="decode",
            kernel="simulated",
            strict=strict,
            keep=keep,
            tiers=tiers,
        )

    def budget(self, output: Output, alpha: float = ALPHA) -> ErrorBudget:
        """The error that `output` may have. A tier that runs alone has all of alpha."""
        rows = RealRows(output.attended, output.out.shape[0], output.out.device)
        problem = packed_problem(output, rows, self.geometry)
        answer = attend(problem, moments=True)
        return ErrorBudget(problem, answer, self.noise, output.out.dtype, output.roundings, alpha)

    def only(self, output: Output, contract: Contract | None = None) -> Observation:
        """The single observation that judging `output` gives."""
        observations = self.judged(output, contract).observations
        assert len(observations) == 1, observations
        return observations[0]


@pytest.fixture
def layer() -> Layer:
    """A small decode; tests vary it with dataclasses.replace."""
    return Layer()
