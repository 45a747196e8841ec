"""The backends of a release on a Hopper GPU: its own classes, kernels compiled by Triton and nvcc, and CUDA's graphs.

From 0.5.19 on, servers on Hopper run trtllm_mha on FlashInfer's XQA and fmha_v2, and so do these backends. Everything
else, which servers only run on Blackwell, uses a release's code for Blackwell, with simple kernels of this project in
place of trtllm-gen: a release's plans, padding and arguments are the same.
"""

from functools import partial
from typing import Final

import msgspec
from packaging.version import Version

from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu.any_gpu import ops as any_gpu
from attnfuzz.kernels.gpu.any_gpu.ops import ANY_GPU
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.direct import fmha_v2, xqa
from attnfuzz.kernels.gpu.hopper.backends import HOPPER, SMALL, WINDOWED
from attnfuzz.kernels.gpu.states import FIXUP_SOURCE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.on_hopper import HopperRelease
from attnfuzz.kernels.sglang.backends import CONTRACT, absent, open_session
from attnfuzz.kernels.sglang.kinds import capability_of
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Mode
from attnfuzz.reference.device import Device
from attnfuzz.reference.noise import NoiseModel

_SINCE_HOPPER: Final = Version("0.5.19")
"""The first version whose prefills run on Hopper (srt/layers/attention/trtllm_mha_backend.py:236, use_fmha_v2). In
earlier ones XQA only decodes: a verify gets no mask, and XQA rejects it without one."""

_PLAIN: Final = KernelsBelow((ANY_GPU.decode, ANY_GPU.context, ANY_GPU.ragged, ANY_GPU.mla_decode, ANY_GPU.fixup))

_ON_XQA: Final = KernelsBelow(
    (HOPPER.decode, fmha_v2.FMHA_V2_OP),
    real=frozenset({HOPPER.decode.name, fmha_v2.FMHA_V2_OP.name}),
    # Split KV keeps partial outputs in the query's dtype, and merges them (mha.cu, toFp16 before mergeAndSave).
    roundings=2,
)

_BUCKETS: Final = (SMALL, msgspec.structs.replace(WINDOWED, windows=tuple(w for w in WINDOWED.windows if w)))
"""Excludes windows of only the query's own key, which SGLang's layers treat as no window."""

_LAYOUT: Final = "Q_PAGED_KV_NHD"
"""The layout with which releases call fmha_v2 (0.5.23 srt/layers/attention/trtllm_mha_backend.py:7)."""


def hopper_backend_of(named: Named, version: Version) -> HopperRelease:
    """Return the backend of a release on Hopper."""
    real = named.kind == "trtllm_mha" and version >= _SINCE_HOPPER
    kernels = _ON_XQA if real else _PLAIN
    capability, buckets = capability_of(named.kind, version), _BUCKETS if real else ()
    # A draft model's decodes, and pools of windows, have not been run on a GPU.
    modes = tuple(mode for mode in capability.modes if mode is not Mode.DRAFT_DECODE)
    return HopperRelease(
        name=str(named),
        named=named,
        absent=absent,
        archs=frozenset({Arch.HOPPER}),
        capability=msgspec.structs.replace(capability, modes=modes, tombstones=(), device=Device.CUDA, buckets=buckets),
        contract=CONTRACT,
        session=partial(open_session, named, kernels),
        kernels=kernels.ops,
        modules_of=_modules_of if real else lambda _: (),
        # XQA's noise is unknown, as elsewhere.
        theoretical=fmha_v2.noise if real else lambda _: NoiseModel.fp32_arithmetic(),
        own=() if real else (any_gpu.SOURCES, (FIXUP_SOURCE,)),
    )


def _modules_of(bucket: Bucket) -> tuple[Module, ...]:
    return (*xqa.modules_of(bucket, ragged=False), *fmha_v2.modules_of(bucket, (_LAYOUT,)))
