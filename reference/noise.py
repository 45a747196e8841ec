"""Noise models: the errors of correct kernels, as parameters of the judge's statistical tiers."""

from enum import StrEnum

import msgspec
import torch

ROUNDOFF: dict[torch.dtype, float] = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
}
"""Unit roundoffs: the maximum relative error of a value rounded to nearest, if it does not underflow."""

SMALLEST_STEP: dict[torch.dtype, float] = {
    # GPU kernels may flush subnormal numbers, so the step of these two is their smallest normal number.
    torch.float32: 2.0**-126,
    torch.bfloat16: 2.0**-126,
    torch.float16: 2.0**-24,
    torch.float8_e4m3fn: 2.0**-9,
}
"""Spacing of values near zero. The maximum absolute error there is half of it, or all of it with flushing."""


def _roundoff(dtype: torch.dtype) -> float:
    if dtype not in ROUNDOFF:
        raise ValueError(f"rounding to {dtype!r} is not known: give one of {', '.join(map(str, ROUNDOFF))}")
    return ROUNDOFF[dtype]


_PARTS = 8
"""Number of parts of a sum over keys in cuBLAS, which chooses it by the shape."""


class Origin(StrEnum):
    """Origin of a noise model: UNKNOWN assumes the worst, THEORY follows from the code, CALIBRATED was measured."""

    UNKNOWN = "unknown"
    THEORY = "theory"
    CALIBRATED = "calibrated"


class NoiseModel(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors of a kernel's operations. The rounding of the output follows from its dtype and is not included.

    - `probabilities` is the roundoff of the softmax weights as they enter the second product (2^-24 for fp32, 2^-8 for
      bf16), and `underflow` their absolute error near zero, relative to the row's largest weight.
    - `row_sum` is the roundoff of the weights as they enter the softmax's denominator: 0 if the weights are summed
      before they are rounded.
    - `operands` is the roundoff of keys and values as they enter the products, 0 if they are exact.
    - `logits` is the root mean square error of a logit relative to |q| |k| |bmm1_scale|, and `logit_scale` the relative
      error that all logits may have in common.
    - `shifted` is the roundoff of a logit's distance from the row's largest one, sinks included, if that is rounded
      before it is exponentiated: the error of a weight grows with its distance from the sink.
    - `accumulate` is the roundoff of the running sums, and `parts` the number of parts of the second product that are
      rounded to the output's dtype before they are added.
    - `exponential` is the relative error of exp beyond that of its argument, and `tanh` that of the soft cap.
    - `quotient` is the absolute error of the reciprocal of the softmax's denominator.
    - `bias` is the relative error of the scale that all rows of an output may have in common.
    - `peak` is the roundoff of a row's largest weight: 0 if that is exp(0), and not exp(-c) for some constant c.
    """

    probabilities: float
    logits: float
    accumulate: float
    exponential: float = 2.0**-22
    tanh: float = 2.0**-22
    row_sum: float = 0.0
    underflow: float = 0.0
    quotient: float = 0.0
    bias: float = 0.0
    peak: float = 0.0
    operands: float = 0.0
    logit_scale: float = 0.0
    shifted: float = 0.0
    parts: int = 1
    origin: Origin = Origin.THEORY

    @classmethod
    def fp32_arithmetic(cls) -> "NoiseModel":
        """Return the model of a kernel that reads exact inputs, computes in fp32, and may flush subnormal numbers."""
        return cls(probabilities=2.0**-24, logits=2.0**-24, accumulate=2.0**-24, underflow=SMALLEST_STEP[torch.float32])

    @classmethod
    def tf32(cls, *, cut: bool = False) -> "NoiseModel":
        """Return the model of a kernel with both products in TF32 (10 bits of mantissa) and everything else in fp32.

        cuBLAS rounds the operands, which torch.backends.cuda.matmul.allow_tf32 enables; with `cut`, their lower bits
        are cut off, as Triton's tl.dot does (both observed on an H200, with torch 2.11). That makes all logits, weights
        and values smaller by 2^-11 on average, and by 2^-10 at most.
        """
        roundoff = 2.0**-10 if cut else 2.0**-11
        model = msgspec.structs.replace(
            cls.fp32_arithmetic(), probabilities=roundoff, logits=roundoff, peak=roundoff, operands=roundoff
        )
        return msgspec.structs.replace(model, logit_scale=2 * roundoff, bias=2 * roundoff) if cut else model

    @classmethod
    def rounded_logits(cls, dtype: torch.dtype) -> "NoiseModel":
        """Return the model of attention as separate operations in a 16-bit `dtype`, which rounds unscaled logits.

        Scaling rounds them again. `eager_attention_forward` of Hugging Face transformers does so: matmul, scale,
        softmax in fp32, cast, matmul. Its weights are divided before they are rounded, so small ones have an absolute
        error. On a GPU, cuBLAS adds up parts of the second product in the output's dtype
        (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction).
        """
        return msgspec.structs.replace(
            cls.unknown_kernel(),
            logits=2 * _roundoff(dtype),
            quotient=SMALLEST_STEP[dtype],
            parts=_PARTS,
            origin=Origin.THEORY,
        )

    @classmethod
    def rounded_probabilities(cls, dtype: torch.dtype) -> "NoiseModel":
        """Return the model of a tensor-core kernel: weights rounded to `dtype`, fp32 elsewhere, fast exp and tanh.

        `tanh` is the error of the instruction tanh.approx.f32 (PTX ISA: maximum relative error 2^-11). `quotient` is
        the error of the division to which nvcc's -use_fast_math compiles x / y, which gives 0 for y above 2^126 (CUDA
        C++ Programming Guide, __fdividef): a sink far above all logits makes such denominators.
        """
        return cls(
            probabilities=_roundoff(dtype),
            logits=2.0**-23,
            accumulate=2.0**-24,
            exponential=2.0**-21,
            tanh=2.0**-11,
            underflow=SMALLEST_STEP[dtype] / 2,
            quotient=2.0**-126,
        )

    @classmethod
    def fp8_probabilities(cls, *, largest: float = 1.0) -> "NoiseModel":
        """Return the model of a tensor-core kernel with weights rounded to e4m3 for the product with the values.

        The denominator is summed before they are rounded; if it is summed after, replace `row_sum` by 2^-4. `largest`
        is the weight of a row's largest logit as it is rounded: kernels that multiply weights by 256 or 448 first, to
        use more of e4m3's range, lose smaller ones. An e4m3 number has 3 bits of mantissa, so a weight is off by 2^-4
        of itself at most, and below 2^-6, the smallest normal number, by half of the spacing 2^-9. `peak` allows for a
        largest weight that is not exp(0), as in rows whose running maximum begins with the sink.

        Errors of that size do not cancel out: of weights that are evenly distributed by their logarithms, more lie in
        the lower half of each interval that rounds to one number. They grow by h^2 / 3 on average, with h <= 2^-4 the
        relative half-width of the interval, and `bias` is that for the widest.
        """
        roundoff = ROUNDOFF[torch.float8_e4m3fn]
        rounded = cls.rounded_probabilities(torch.float8_e4m3fn)
        return msgspec.structs.replace(
            rounded, underflow=rounded.underflow / largest, peak=roundoff, bias=roundoff**2 / 3
        )

    @classmethod
    def unknown_kernel(cls) -> "NoiseModel":
        """Return the model of an unknown kernel: bf16 weights in both the product and the denominator."""
        return msgspec.structs.replace(
            cls.rounded_probabilities(torch.bfloat16),
            row_sum=ROUNDOFF[torch.bfloat16],
            peak=ROUNDOFF[torch.bfloat16],
            underflow=SMALLEST_STEP[torch.float16] / 2,
            bias=2.0**-9,
            origin=Origin.UNKNOWN,
        )

    @classmethod
    def torch_sdpa_cpu(cls, dtype: torch.dtype) -> "NoiseModel":
        """Return the model of `scaled_dot_product_attention` on the CPU for inputs of `dtype`.

        Its fused kernel rounds the weights to the inputs' dtype and uses an exp of 20 bits (ATen, exp_u20 in
        FlashAttentionKernel.cpp); its plain path computes in fp32.
        """
        return msgspec.structs.replace(
            cls.rounded_probabilities(dtype), exponential=2.0**-19, tanh=2.0**-22, logits=2.0**-23, quotient=0.0
        )
