"""The errors of a correct kernel of a recurrence."""

import msgspec
import torch

from attnfuzz.reference.noise import ROUNDOFF

FP32 = ROUNDOFF[torch.float32]


class StateNoise(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors of a kernel's operations. The roundings to the dtypes of output and pool follow from these.

    - `operands` is the roundoff of queries, keys, values and states as they enter products: 2^-24 in fp32, 2^-11 in
      tf32, 2^-8 in bf16. Chunked forms round further factors, of the size of keys and values (arXiv:2412.06464, sec.
      3.2), so theirs is a multiple of it.
    - `accumulate` is the roundoff of sums of products.
    - `state` is the roundoff of the state between two tokens of a call.
    - `step` is the absolute error of a softplus, from which decays and Mamba's steps follow: log(1 + exp(x)) has that
      of the rounding of the sum, which is large beside a small result.
    - `gate` is the relative error of the logarithm of a decay, `decay_floor` its absolute error, and `exponential` the
      relative error of its exponential.
    - `decay_offset` is a constant that is added to a decay, so that its logarithm is finite.
    - `prefix` is the roundoff of the sums of these logarithms from the beginning of a chunk of 64 tokens. Chunked forms
      take the decay between two tokens as the exponential of a difference of two such sums.
    - `middle` is the roundoff of an output before an activation or a gate is applied.
    - `activation` is the relative error of silu, sigmoid and of a step after softplus.
    """

    operands: float = FP32
    accumulate: float = FP32
    state: float = FP32
    step: float = 0.0
    gate: float = 4 * FP32
    decay_floor: float = 4 * FP32
    exponential: float = 4 * FP32
    decay_offset: float = 0.0
    prefix: float = 0.0
    middle: float = FP32
    activation: float = 4 * FP32

    @classmethod
    def fp32_arithmetic(cls) -> "StateNoise":
        """Return the model of a kernel that computes token by token in fp32, with a vectorised exp."""
        return cls()

    @classmethod
    def chunked(cls, dtype: torch.dtype) -> "StateNoise":
        """Return the model of a chunked form, whose products have operands of `dtype` (fp32 stands for tf32).

        A product of a chunk has up to three rounded factors: the inverse of I + tril(beta K K'), keys and values
        weighted by beta, and the states between chunks.
        """
        roundoff = 2.0**-11 if dtype is torch.float32 else ROUNDOFF[dtype]
        return cls(operands=2 * roundoff, activation=roundoff)
