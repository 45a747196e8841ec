"""FlashInfer's wrapper for paged prefill on an 8-bit cache with a scale for each token and head, since 0.7.4.

"The KV cache is an FP8 tensor with the standard layout, and a separate float32 scale tensor (mirroring the KV layout
minus head_dim) is passed via kv_cache_sf" (docstring of plan: use_token_head_sf). FA2 alone has it. Logits are
multiplied by the scale of their key in fp32, and elements of V by theirs before the second product
(apply_v_token_head_scale, attention/prefill.cuh).
"""

from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.wrappers.backends import (
    EIGHT_BITS,
    PACKING,
    capability_of,
    described,
    each_variant,
    fa2_noise,
    wrapper_backend,
)
from attnfuzz.kernels.gpu.wrappers.paged import FA2_PAGED, PagedForm
from attnfuzz.kernels.gpu.wrappers.paged_session import PagedWrapperSession
from attnfuzz.reference.arguments import ArgumentForm, without
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import SPECULATIVE, Granularity, Mask, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel


class TokenHeadSession(PagedWrapperSession):
    """A session whose runs get tensors of scales."""

    def _cache_scales(self) -> dict[str, Any]:
        return {"kv_cache_sf": self._kv.scales}


_FORM: Final = PagedForm(**{**vars(FA2_PAGED), "fixed": {**FA2_PAGED.fixed, "use_token_head_sf": True}})

_BRAIN: Final = msgspec.structs.replace(EIGHT_BITS, dtype=DType.BFLOAT16)

_NUMBERS: Final = (
    ArgumentForm.K_SCALE_DEFAULT,
    ArgumentForm.V_SCALE_DEFAULT,
    ArgumentForm.K_SCALE_TENSOR,
    ArgumentForm.V_SCALE_TENSOR,
)
"""Forms of scales that are numbers."""


def _noise(dtype: DType) -> NoiseModel:
    """Return FA2's noise with that of elements of V. In bf16, the scale is rounded as well as its product."""
    roundings = 2 if dtype is DType.BFLOAT16 else 1
    return msgspec.structs.replace(fa2_noise(dtype), operands=roundings * ROUNDOFF[dtype.torch_dtype])


def _spec(name: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - makes a CUDA context

    return getattr(modules, name)("fa2", *described(dtypes, dims), window, cap, False, use_token_head_sf=True)


def modules_of(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules for K and V of equal and of different strides, and the one which packs a mask into bits."""
    equal = partial(_spec, "_gen_batch_prefill_primary_module")
    different = partial(_spec, "_gen_batch_prefill_independent_paged_module")
    return (
        *each_variant(bucket, "FA2 prefill with scales of tokens and heads,", equal),
        *each_variant(bucket, "FA2 paged prefill of different strides with scales of tokens and heads,", different),
        PACKING,
    )


TOKEN_HEAD: Final = wrapper_backend(
    "fa2_token_head_scales",
    TokenHeadSession,
    _FORM,
    msgspec.structs.replace(
        capability_of(Mode.of_kernels(), SPECULATIVE, EIGHT_BITS, _BRAIN, masks=tuple(Mask)),
        fp8_kv=True,
        granularities=(Granularity.TOKEN_HEAD,),
    ),
    _noise,
    without(rules.PAGED_PREFILL, *_NUMBERS),
    lives.of_fa2_paged,
    modules_of,
)
"""The backend."""
