"""The inputs of cases of recurrent state: all follow from a case's seed."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import softplus

from attnfuzz.reference.recurrent.case import StateCase, StateOp, StateValues
from attnfuzz.reference.recurrent.recurrence import StateTerms, Taps

_SMALL = 2.0**-9
"""The size of small queries and keys: their squared length is near the epsilon that is added to it."""

NORM_EPSILON = 1e-6
"""Added to the squared length of a query or key before its root is taken (vLLM and FLA: l2norm)."""

_CENTRE = {
    StateValues.NORMAL: -0.5,
    StateValues.LONG_MEMORY: -7.0,
    StateValues.FORGETFUL: 3.0,
    StateValues.ALIKE: -2.0,
    StateValues.SMALL: -2.0,
}
"""The logarithm of the rate at which heads forget."""

_OF_HEADS = (StateValues.NORMAL, StateValues.LONG_MEMORY, StateValues.FORGETFUL)


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a step, for the tokens of requests and of padding, in the dtype of the case unless stated.

    query and key [T, heads, key_dim] (C and B of Mamba), value [T, value_heads, value_dim] (its x). `raw_decay` is
    [T, value_heads], or [T, value_heads, key_dim] of KDA: a in exp(-exp(A_log) softplus(a + dt_bias)), or Mamba's dt.
    `raw_beta` [T, value_heads]: beta is its sigmoid. `gate` [T, value_heads, value_dim].
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    raw_decay: torch.Tensor
    raw_beta: torch.Tensor
    gate: torch.Tensor


@dataclass(frozen=True)
class Weights:
    """The parameters of a layer, in fp32 unless stated.

    A_log [value_heads]; dt_bias like a token's raw decay; A [value_heads], or [value_heads, key_dim] of channels, < 0;
    D [value_heads]; slope [value_heads] < 0, the logarithm of a constant decay; taps [channels, width] and bias
    [channels] in the dtype of the case.
    """

    a_log: torch.Tensor
    dt_bias: torch.Tensor
    a: torch.Tensor
    d: torch.Tensor
    slope: torch.Tensor
    taps: torch.Tensor
    bias: torch.Tensor


class CaseValues:
    """Draws the inputs of a case."""

    def __init__(self, case: StateCase) -> None:
        self._case = case

    def _generator(self, *path: int) -> torch.Generator:
        seed = self._case.seed
        for part in path:
            seed = (seed * 1_000_003 + part + 1) % (1 << 63)
        return torch.Generator().manual_seed(seed)

    @cached_property
    def weights(self) -> Weights:
        """The parameters of the layer."""
        case, shape, dtype = self._case, self._case.shape, self._case.dtype.torch_dtype
        source, heads = self._generator(1), shape.value_heads

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=source)

        raw = (heads, shape.key_dim) if case.op is StateOp.KDA else (heads,)
        of_a = (heads, shape.key_dim) if case.op is StateOp.SSM_OF_CHANNELS else (heads,)
        centre = self._centres(heads)
        a_log, dt_bias = centre + 0.5 * normal(heads), (0.5 * normal(*raw)).to(dtype).float()
        a, d = -(centre.view(-1, *(1,) * (len(of_a) - 1)) + 0.5 * normal(*of_a)).exp(), normal(heads)
        if case.narrow:
            a_log, d = (each.to(dtype).float() for each in (a_log, d))
        if case.no_softplus:
            # Steps are positive.
            dt_bias = dt_bias.abs()
        return Weights(
            a_log=a_log,
            dt_bias=torch.zeros_like(dt_bias) if case.no_step_bias else dt_bias,
            a=a,
            d=torch.zeros_like(d) if case.no_skip else d,
            slope=-(centre + 0.5 * normal(heads)).exp(),
            taps=(normal(shape.value_dim, shape.width) / shape.width**0.5).to(dtype),
            bias=normal(shape.value_dim).to(dtype),
        )

    def _centres(self, heads: int) -> torch.Tensor:
        """Return the logarithm of the rate at which each head forgets."""
        if self._case.values is not StateValues.MIXED:
            return torch.full((heads,), _CENTRE[self._case.values])
        return torch.tensor([_CENTRE[_OF_HEADS[head % len(_OF_HEADS)]] for head in range(heads)])

    def step(self, index: int, tokens: int) -> StepInputs:
        """Draw the inputs of a step's tokens."""
        case, shape, dtype = self._case, self._case.shape, self._case.dtype.torch_dtype
        source, heads = self._generator(2, index), shape.value_heads

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=source)

        raw = (heads, shape.key_dim) if case.op is StateOp.KDA else (heads,)
        query, key = normal(tokens, shape.heads, shape.key_dim), normal(tokens, shape.heads, shape.key_dim)
        if case.values is StateValues.ALIKE:
            key = normal(1, shape.heads, shape.key_dim) + 0.2 * key
        if case.op.is_delta and not case.normed:
            # The delta rule is stable for keys of length 1.
            key = key / key.norm(dim=-1, keepdim=True).clamp(min=1e-3)
        elif case.values is StateValues.SMALL:
            query, key = _SMALL * query, _SMALL * key
        value = normal(tokens, heads, shape.value_dim)
        step = normal(tokens, *raw)
        step = step.abs() if case.no_softplus else step
        drawn = (query, key, value, step, 2 * normal(tokens, heads), normal(*value.shape))
        return StepInputs(*(each.to(dtype) for each in drawn))

    def state(self, lane: int, accepted: int) -> torch.Tensor:
        """Draw the state with which a lane's first request begins, if it has one: an earlier step wrote it."""
        source = self._generator(3, lane, accepted)
        case = self._case
        drawn = torch.randn(case.state_shape, generator=source)
        if case.op is StateOp.CONV:
            drawn = drawn.to(case.dtype.torch_dtype)
        return drawn.to(case.state_dtype.torch_dtype)

    def log_decay(self, inputs: StepInputs) -> torch.Tensor:
        """Return the logarithms of decays in fp64: [T, value_heads], [T, value_heads, key_dim] of KDA and of channels.

        Those of a delta rule are -exp(A_log) softplus(a + dt_bias), those of Mamba A softplus(dt + dt_bias).
        """
        weights, op = self.weights, self._case.op
        if op is StateOp.DECAY:
            return weights.slope.double().expand(len(inputs.value), -1)
        if op is StateOp.SSM:
            return weights.a.double() * self.time_step(inputs)
        if op is StateOp.SSM_OF_CHANNELS:
            return weights.a.double() * self.time_step(inputs).unsqueeze(-1)
        rate = weights.a_log.double().exp()
        raw = softplus(inputs.raw_decay.double() + weights.dt_bias.double(), threshold=1e9)
        return -(rate.unsqueeze(-1) if op is StateOp.KDA else rate) * raw

    @property
    def _rate(self) -> torch.Tensor | None:
        """The factor of a softplus in the logarithm of a decay, [value_heads, key_dim or 1]."""
        weights, op = self.weights, self._case.op
        if op is StateOp.DECAY:
            return None
        rate = weights.a.double() if op.is_ssm else weights.a_log.double().exp()
        return rate if rate.dim() > 1 else rate.unsqueeze(-1)

    def time_step(self, inputs: StepInputs) -> torch.Tensor:
        """Return Mamba's dt in fp64, [T, value_heads]."""
        if self._case.no_softplus:
            return inputs.raw_decay.double() + self.weights.dt_bias.double()
        return softplus(inputs.raw_decay.double() + self.weights.dt_bias.double(), threshold=1e9)

    def given_decay(self, inputs: StepInputs) -> torch.Tensor:
        """Return the logarithms of decays as kernels get them, in fp32."""
        return self.log_decay(inputs).float()

    def given_beta(self, inputs: StepInputs) -> torch.Tensor:
        """Return beta as kernels get it, in the dtype of the case."""
        return inputs.raw_beta.double().sigmoid().to(inputs.raw_beta.dtype)

    @property
    def scale(self) -> float:
        """The factor of queries."""
        return 1.0 if self._case.op.is_ssm else self._case.shape.key_dim**-0.5

    def terms(self, inputs: StepInputs, tokens: slice, *, given: bool) -> StateTerms:
        """Return the factors of the recurrence for some tokens.

        Kernels are `given` decays and beta, or compute them.
        """
        case, shape = self._case, self._case.shape
        group = shape.value_heads // shape.heads
        part = StepInputs(*(each[tokens] for each in vars(inputs).values()))
        query, key = (each.double() for each in (part.query, part.key))
        if case.normed:
            query, key = (each * (each.square().sum(-1, keepdim=True) + NORM_EPSILON).rsqrt() for each in (query, key))
        log_decay = self.given_decay(part).double() if given else self.log_decay(part)
        beta = None
        if case.op.is_delta:
            beta = self.given_beta(part).double() if given else part.raw_beta.double().sigmoid()
        value, skip, step = part.value.double(), None, None
        if case.op.is_ssm:
            skip = None if case.no_skip else self.weights.d.double().unsqueeze(-1) * value
            step = self.time_step(part).unsqueeze(-1)
            value = step * value
        return StateTerms(
            query=query.repeat_interleave(group, 1) * self.scale,
            key=key.repeat_interleave(group, 1),
            value=value,
            log_decay=log_decay if log_decay.dim() == key.dim() else log_decay.unsqueeze(-1),
            beta=beta,
            skip=skip,
            gate=part.gate.double() if case.gated else None,
            rate=None if given else self._rate,
            step=step,
        )

    @property
    def taps(self) -> Taps:
        """The factors of a convolution."""
        case, weights = self._case, self.weights
        return Taps(weights.taps, weights.bias if case.biased else None, case.activated)
