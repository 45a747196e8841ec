"""Names of a release that are given another value once it is imported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from attnfuzz.kernels.sglang.adaptations.inert import Inert
from attnfuzz.kernels.sglang.adaptations.spans import VersionRange, span


@dataclass(frozen=True)
class ChangedName:
    """One name of one module.

    Attributes:
        module: Where it is, below sglang.srt.
        name: What it is called there, with dots for what is inside of it.
        value: What it is instead.
        versions: For which releases.
        source: The line that asks for it, below sglang/srt/, in the first version of the range.
        reason: Why it can't stay.
        on_gpus: Whether the module has the name only where there is a GPU, so that here it may be new.

    """

    module: str
    name: str
    value: Any
    versions: VersionRange
    source: str
    reason: str
    on_gpus: bool = False


def _always(answer: object) -> Callable[..., object]:
    def function(*_: object, **__: object) -> object:
        return answer

    return function


class _WithTriton:
    """What a platform is capable of that runs Triton's kernels and no others."""

    supports_triton = graph_capture = True

    def __getattr__(self, name: str) -> bool:
        """Nothing else."""
        return False


_ALL = span("0.5.9")
_FLASHINFER = "layers.attention.flashinfer_backend"
_FLASHINFER_MLA = "layers.attention.flashinfer_mla_backend"
_UNUSED = "its parent's, for the kernels that it was made for: the TRT-LLM backends override all that runs them"

CHANGES = (
    ChangedName(
        "model_executor.forward_batch_info",
        "mambaish_config",
        _always(None),
        span("0.5.16"),
        "model_executor/forward_batch_info.py:40",
        "a stub would answer that the model has Mamba layers, whose batches are padded otherwise",
    ),
    ChangedName(
        "configs.shared_experts",
        "default_shared_experts_config",
        _always(None),
        span("0.5.23"),
        "arg_groups/fields/model.py:44",
        "it is about experts, and there are none",
    ),
    ChangedName(
        "layers.attention.trtllm_mla_backend",
        "can_use_set_mla_kv_concat_q",
        _always(False),
        span("0.5.17"),
        "layers/attention/trtllm_mla_backend.py:301",
        "a kernel that nvcc compiles would write the cache; the way without it is for GPUs before sm_90",
    ),
    ChangedName(
        "platforms.interface",
        "SRTPlatform.capabilities",
        _WithTriton(),
        span("0.5.22"),
        "platforms/interface.py:90",
        "the way without Triton is no GPU's: it writes the cache through a mask, which no graph can hold",
    ),
    *(
        ChangedName(module, name, Inert, _ALL, f"layers/attention/{source}", _UNUSED, on_gpus=name.endswith("Wrapper"))
        for module, name, source in (
            (_FLASHINFER, "BatchPrefillWithRaggedKVCacheWrapper", "flashinfer_backend.py:254"),
            (_FLASHINFER, "BatchPrefillWithPagedKVCacheWrapper", "flashinfer_backend.py:266"),
            (_FLASHINFER, "BatchDecodeWithPagedKVCacheWrapper", "flashinfer_backend.py:280"),
            (_FLASHINFER, "FlashInferIndicesUpdaterPrefill", "flashinfer_backend.py:290"),
            (_FLASHINFER, "FlashInferIndicesUpdaterDecode", "flashinfer_backend.py:293"),
            (_FLASHINFER_MLA, "BatchPrefillWithRaggedKVCacheWrapper", "flashinfer_mla_backend.py:251"),
            (_FLASHINFER_MLA, "BatchMLAPagedAttentionWrapper", "flashinfer_mla_backend.py:256"),
            (_FLASHINFER_MLA, "FlashInferMLAIndicesUpdaterPrefill", "flashinfer_mla_backend.py:273"),
            (_FLASHINFER_MLA, "FlashInferMLAIndicesUpdaterDecode", "flashinfer_mla_backend.py:279"),
        )
    ),
)


def changes_in(version: Version) -> tuple[ChangedName, ...]:
    """What is changed in a version."""
    return tuple(change for change in CHANGES if version in change.versions)
