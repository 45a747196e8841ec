"""False alarms on simulated kernels that compute exactly as their noise models say, and the worst margins."""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
import torch
from in_process import use_one_thread
from measurement import count_option, json_option, seed_option, show

from attnfuzz.harness.judge import judge
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, ValueFamily
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.numbers import families
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel
from attnfuzz.reference.values import Operand, draw, draw_sinks

Rounding = Callable[[torch.Tensor], torch.Tensor]

_SMALLEST_NORMAL = 2.0**-126
_LOWEST = -1e30


def unrounded(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself."""
    return tensor


def flushed(tensor: torch.Tensor) -> torch.Tensor:
    """Replace subnormal numbers by zeros."""
    return torch.where(tensor.abs() < _SMALLEST_NORMAL, 0.0, tensor)


def rounded(dtype: torch.dtype) -> Rounding:
    """Return a rounding to a 16-bit dtype."""
    return lambda tensor: tensor.to(dtype).float()


def fp8(largest: float) -> Rounding:
    """Return a rounding to e4m3 of numbers that are multiplied by `largest` before it, and divided after it."""
    return lambda tensor: (tensor * largest).to(torch.float8_e4m3fn).float() / largest


def tf32(*, cut: bool) -> Rounding:
    """Return a rounding to TF32, with the lower 13 bits rounded to nearest or, with `cut`, truncated."""

    def of(tensor: torch.Tensor) -> torch.Tensor:
        bits = tensor.contiguous().view(torch.int32)
        return ((bits if cut else bits + 0x1000) & ~0x1FFF).view(torch.float32)

    return of


@dataclass(frozen=True)
class Simulated:
    """A kernel in fp32 that rounds its operands, logits, weights and partial sums, and its noise model.

    Each of the `splits` of the keys has weights relative to its own largest logit; the first split counts the sink.
    """

    noise: NoiseModel
    dtype: torch.dtype
    operands: Rounding = unrounded
    logits: Rounding = unrounded
    weights: Rounding = unrounded
    sums: Rounding = unrounded
    one_by_one: bool = False
    normalized: bool = False
    shifts: bool = False
    parts: int = 1
    splits: int = 1

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, problem: "DrawnLayer"
    ) -> torch.Tensor:
        """Return fp32 out and natural LSE of one request, [heads, q, dim + 1]."""
        q_len, kv_len = query.shape[1], key.shape[1]
        logits = self.logits(self.operands(query) @ self.operands(key).mT)
        logits = self.logits(logits * problem.dim**-0.5)
        if problem.soft_cap:
            logits = self.logits(problem.soft_cap * torch.tanh(logits / problem.soft_cap))
        hidden = torch.arange(kv_len) > torch.arange(q_len).unsqueeze(1) + kv_len - q_len
        logits = logits.masked_fill(hidden, -torch.inf)
        if self.splits > 1:
            return self._merged(logits, value, problem.sinks)
        peak = logits.amax(dim=-1, keepdim=True)
        if problem.sinks is not None:
            peak = peak.maximum(problem.sinks.view(-1, 1, 1))
        below = logits - peak
        weights = self.sums(torch.exp(self.logits(below) if self.shifts else below))
        total = weights.sum(dim=-1, keepdim=True)
        if problem.sinks is not None:
            below = problem.sinks.view(-1, 1, 1) - peak
            total = total + torch.exp(self.logits(below) if self.shifts else below)
        out = self._product(weights / total if self.normalized else weights, value)
        if not self.normalized:
            out = out / total
        return torch.cat((out, peak + total.log()), dim=-1)

    def _merged(self, logits: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        heads, q_len, _ = logits.shape
        least = torch.full((heads, q_len, 1), _LOWEST)
        peak, total, out = least, torch.zeros_like(least), torch.zeros(heads, q_len, value.shape[2])
        splits = zip(logits.tensor_split(self.splits, dim=2), value.tensor_split(self.splits, dim=1), strict=True)
        for index, (own_logits, own_value) in enumerate(splits):
            own_peak = torch.cat((own_logits, least), dim=2).amax(dim=-1, keepdim=True)
            if sinks is not None and not index:
                own_peak = own_peak.maximum(sinks.view(-1, 1, 1))
                total = torch.exp(sinks.view(-1, 1, 1) - own_peak)
                peak = own_peak
            weights = torch.exp(own_logits - own_peak)
            higher = peak.maximum(own_peak)
            before, now = torch.exp(peak - higher), torch.exp(own_peak - higher)
            total = total * before + weights.sum(dim=-1, keepdim=True) * now
            out = out * before + self._product(weights, own_value) * now
            peak = higher
        return torch.cat((out / total, peak + total.log()), dim=-1)

    def _product(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        weights, value = self.operands(self.weights(weights)), self.operands(value)
        if self.one_by_one:
            out = torch.zeros(*weights.shape[:2], value.shape[2])
            for key in range(value.shape[1]):
                out = self.sums(out + self.sums(weights[:, :, key : key + 1] * value[:, key : key + 1]))
            return out
        out = torch.zeros(*weights.shape[:2], value.shape[2])
        pieces = zip(weights.tensor_split(self.parts, dim=2), value.tensor_split(self.parts, dim=1), strict=True)
        for own_weights, own_values in pieces:
            out = self.sums(out + self.sums(own_weights @ own_values))
        return out


def _kernels() -> dict[str, Simulated]:
    kernels = {
        "fp32": Simulated(NoiseModel.fp32_arithmetic(), torch.float32),
        "fp32, subnormals flushed": Simulated(
            NoiseModel.fp32_arithmetic(), torch.float32, sums=flushed, one_by_one=True
        ),
        "tf32": Simulated(NoiseModel.tf32(), torch.float32, operands=tf32(cut=False)),
        "tf32, cut": Simulated(NoiseModel.tf32(cut=True), torch.float32, operands=tf32(cut=True)),
    }
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        weights = NoiseModel.rounded_probabilities(dtype)
        kernels[f"{name} weights"] = Simulated(weights, dtype, weights=rounded(dtype))
        for largest in (1.0, 256.0, 448.0):
            kernels[f"{name}, fp8 weights up to {largest:g}"] = Simulated(
                NoiseModel.fp8_probabilities(largest=largest), dtype, weights=fp8(largest)
            )
        kernels[f"{name}, fp8 weights, split"] = Simulated(
            NoiseModel.fp8_probabilities(), dtype, weights=fp8(1.0), splits=16
        )
        kernels[f"{name} weights, split"] = Simulated(
            msgspec.structs.replace(weights, peak=ROUNDOFF[dtype]), dtype, weights=rounded(dtype), splits=16
        )
        kernels[f"{name}, unknown"] = Simulated(
            NoiseModel.unknown_kernel(), dtype, weights=rounded(torch.bfloat16), normalized=True
        )
        single = NoiseModel.rounded_logits(dtype)
        kernels[f"{name} logits"] = Simulated(
            single, dtype, logits=rounded(dtype), weights=rounded(dtype), normalized=True
        )
        kernels[f"{name} logits, shifted"] = Simulated(
            msgspec.structs.replace(single, shifted=ROUNDOFF[dtype]),
            dtype,
            logits=rounded(dtype),
            weights=rounded(dtype),
            normalized=True,
            shifts=True,
        )
        kernels[f"{name} logits and parts"] = Simulated(
            single, dtype, logits=rounded(dtype), weights=rounded(dtype), sums=rounded(dtype), normalized=True, parts=8
        )
    return kernels


KERNELS = _kernels()

FAMILIES = families(Capability(modes=(Mode.DECODE,)))
"""The families of attention. Those of writers are not finite, or too large for logits in float16."""


@dataclass(frozen=True)
class DrawnLayer:
    """A batch of requests (q_len, kv_len) of one value family."""

    family: ValueFamily
    lengths: tuple[tuple[int, int], ...]
    dim: int
    kv_heads: int
    group: int
    soft_cap: float
    sinks: torch.Tensor | None
    seed: int

    @classmethod
    def drawn(cls, family: ValueFamily, chance: random.Random) -> "DrawnLayer":
        """Return a random layer of about 1,000 rows."""
        q_len, kv_heads, group = chance.choice((1, 1, 4, 64)), chance.choice((1, 2, 4)), chance.choice((1, 4, 8))
        count = max(1000 // (q_len * kv_heads * group), 1)
        longest = chance.choice((16, 64, 300))
        lengths = tuple((q_len, q_len + chance.randrange(longest)) for _ in range(min(count, 64)))
        seed, heads = chance.randrange(1 << 30), kv_heads * group
        sinks = draw_sinks(family, heads, seed=seed, stream=1 << 20) if chance.random() < 0.25 else None
        cap = chance.choice((0.0, 0.0, 0.0, 0.03, 0.1, 0.5, 1.0, 5.0, 30.0))
        return cls(family, lengths, chance.choice((8, 16, 64, 128)), kv_heads, group, cap, sinks, seed)

    def run(self, kernel: Simulated) -> Output:
        """Return the kernel's output, with LSE in base e."""
        attended, outs, row = [], [], 0
        for stream, (q_len, kv_len) in enumerate(self.lengths):
            query = self._drawn(Operand.QUERY, q_len, self.kv_heads * self.group, stream).to(kernel.dtype)
            key, value = (
                self._drawn(role, kv_len, self.kv_heads, stream).to(kernel.dtype)
                for role in (Operand.KEY, Operand.VALUE)
            )
            attended.append(Attended(row, query, key, value))
            keys, values = (each.float().transpose(0, 1).repeat_interleave(self.group, 0) for each in (key, value))
            outs.append(kernel.attend(query.float().transpose(0, 1), keys, values, self).transpose(0, 1))
            row += q_len
        both = torch.cat(outs)
        out, lse = both[..., :-1].to(kernel.dtype), both[..., -1].contiguous()
        return Output(out, lse, tuple(attended), self.dim**-0.5, 1.0, sinks=self.sinks)

    def _drawn(self, role: Operand, tokens: int, heads: int, stream: int) -> torch.Tensor:
        return draw(self.family, role, (tokens, heads, self.dim), seed=self.seed, stream=stream)

    def geometry(self, dtype: torch.dtype) -> Geometry:
        """Return the layer's geometry."""
        return Geometry(
            q_heads=self.kv_heads * self.group,
            kv_heads=self.kv_heads,
            head_dim_qk=self.dim,
            head_dim_vo=self.dim,
            page_size=16,
            dtype=DType.of(dtype),
            kv_dtype=DType.of(dtype),
            sinks=self.sinks is not None,
            soft_cap=self.soft_cap,
        )


@dataclass
class Judged:
    """The results of judging one kernel on one family."""

    rows: int = 0
    margins: dict[str, float] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)


@click.command()
@count_option("--rows", 1_000_000, "Rows to judge of each kernel and value family.")
@click.option("--seconds", type=float, default=math.inf, help="Stop each kernel and family after this time.")
@click.option("--kernel", "names", multiple=True, type=click.Choice(list(KERNELS)), help="[default: all]")
@count_option("--jobs", 2, "Processes.")
@seed_option
@json_option
def main(*, rows: int, seconds: float, names: tuple[str, ...], jobs: int, seed: int, json_file: Path | None) -> None:
    """Judge outputs of simulated kernels, each by the noise model that describes it, and count failures."""
    cells = [(name, family, rows, seconds, seed) for name in names or KERNELS for family in FAMILIES]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=use_one_thread) as pool:
        tallies = dict(zip((cell[:2] for cell in cells), pool.map(_judged, cells), strict=True))
    tiers = sorted({tier for tally in tallies.values() for tier in tally.margins})
    show(
        "False alarms of simulated kernels",
        ("kernel, values", "rows", "alarms", *tiers),
        [(f"{name}, {family}", *_cells(tally, tiers)) for (name, family), tally in tallies.items()],
    )
    for (name, family), tally in tallies.items():
        for alarm in tally.alarms[:3]:
            click.echo(f"{name}, {family}: {alarm}")
    if json_file is not None:
        content = {f"{name}, {family}": vars(tally) for (name, family), tally in tallies.items()}
        json_file.write_text(json.dumps(content, indent=2))


def _judged(cell: tuple[str, ValueFamily, int, float, int]) -> Judged:
    name, family, rows, seconds, seed = cell
    kernel, tally, chance = KERNELS[name], Judged(), random.Random(f"{seed} {name} {family}")
    end = time.monotonic() + seconds
    while tally.rows < rows and time.monotonic() < end:
        layer = DrawnLayer.drawn(family, chance)
        found = judge(
            layer.run(kernel),
            geometry=layer.geometry(kernel.dtype),
            contract=Contract(lse=LseBase.E),
            noise=kernel.noise,
            step=0,
            mode="decode",
            kernel=name,
        )
        tally.rows += found.rows
        tally.alarms += [f"seed {layer.seed}: {each.kind} {each.tier}: {each.message}" for each in found.observations]
        for tier, margin in found.margins.items():
            tally.margins[tier] = max(margin, tally.margins.get(tier, 0.0))
    return tally


def _cells(tally: Judged, tiers: list[str]) -> Iterator[str]:
    yield f"{tally.rows:,}"
    yield str(len(tally.alarms))
    yield from (f"{tally.margins[tier]:.2f}" if tier in tally.margins else "-" for tier in tiers)


if __name__ == "__main__":
    main()
