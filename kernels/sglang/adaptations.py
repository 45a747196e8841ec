"""Changes to a release that make it run without a server, a GPU or a model.

They only concern imports and a server's setup, and leave a backend's planning, padding, writes and calls as they are.
Each row names its versions and the line of SGLang behind it; a version without its own rows gets those of the nearest
earlier one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.releases.latent_wrapper import LatentWrapper
from attnfuzz.kernels.releases.packed_wrapper import PackedWrapper, merge_state
from attnfuzz.kernels.releases.versions import Stubbed, VersionRange, span
from attnfuzz.kernels.sglang.wrappers import DecodeWrapper, PrefillWrapper, fast_decode_plan

_ALL = span("0.5.9")

STUBBED = (
    # Packages that a server needs and attention does not: configs, tokenizers and weights of models.
    Stubbed("transformers", _ALL, "srt/utils/hf_transformers_utils.py:34"),
    Stubbed("huggingface_hub", _ALL, "srt/utils/hf_transformers_utils.py:26"),
    Stubbed("IPython", _ALL, "utils.py:26"),
    Stubbed("compressed_tensors", _ALL, "srt/layers/quantization/compressed_tensors/compressed_tensors.py:20"),
    Stubbed("regex", _ALL, "srt/layers/quantization/modelopt_quant.py:8"),
    Stubbed("gguf", _ALL, "srt/layers/quantization/gguf.py:9"),
    Stubbed("safetensors", _ALL, "srt/connector/serde/safe_serde.py:6"),
    Stubbed("dill", _ALL, "srt/sampling/custom_logit_processor.py:6"),
    Stubbed("torchvision", span("0.5.10"), "srt/utils/common.py:90"),
    Stubbed("yaml", _ALL, "srt/multiplex/pdmux_context.py:5"),
    Stubbed("uvicorn", span("0.5.19"), "srt/distributed/gated_launch.py:8"),
    Stubbed("fastapi", span("0.5.19"), "srt/distributed/gated_launch.py:9"),
    # Compiled for GPUs, and used for pools in the host's memory, which do not exist here.
    Stubbed("sgl_kernel", span("0.5.9", before="0.5.11"), "srt/mem_cache/memory_pool_host.py:32"),
    # Parts of SGLang that import those packages, or many others.
    Stubbed("sglang.srt.configs", _ALL, "srt/utils/hf_transformers_utils.py:46"),
    Stubbed("sglang.srt.parser", _ALL, "srt/server_args.py:34"),
    Stubbed("sglang.srt.function_call", _ALL, "srt/server_args.py:31"),
)


class Inert:
    """A class that plans nothing and refuses to run: the TRT-LLM backends override all code that runs it."""

    def __init__(self, *arguments: object, **options: object) -> None:
        """Accept the arguments of the class that it replaces."""

    def plan(self, *arguments: object, **options: object) -> None:
        """Plan nothing."""

    # SGLang calls a wrapper's plan by its old name (0.5.9 flashinfer_mla_backend.py:125), and its planners by update.
    begin_forward = plan
    update = plan

    def run(self, *arguments: object, **options: object) -> None:
        """Raise Unsupported: only the TRT-LLM kernels are tested."""
        raise Unsupported("the batch is handed to a wrapper class of FlashInfer's, by the backend's parent")

    forward = run
    forward_return_lse = run
    run_return_lse = run


@dataclass(frozen=True)
class ChangedName:
    """One name of one module.

    Attributes:
        module: Its module, below sglang.srt.
        name: Its name there, with dots for members.
        value: The new value.
        versions: The releases that need it.
        source: The line that uses it, below sglang/srt/, in the first version of the range.
        reason: Why it has to change.
        kinds: The kinds of backend that need it; by default all.
        on_gpus: Whether the module only has the name if there is a GPU, so that it may be missing here.
        on_hopper: Whether the change is for a Hopper GPU only. A release is imported as if there were no GPU, and
            caches that. It then also works without the compiled sgl_kernel: torch, Triton, or a kernel that it
            compiles itself writes the cache.

    """

    module: str
    name: str
    value: Any
    versions: VersionRange
    source: str
    reason: str
    kinds: tuple[str, ...] = ()
    on_gpus: bool = False
    on_hopper: bool = False


def _always(answer: object) -> Callable[..., object]:
    def function(*_: object, **__: object) -> object:
        return answer

    return function


class _WithTriton:
    """The capabilities of a platform that only runs Triton's kernels."""

    supports_triton = graph_capture = True

    def __getattr__(self, name: str) -> bool:
        """Return False for every other capability."""
        return False


class AttentionArch(StrEnum):
    """The kinds of attention of a model (0.5.9: configs/model_config.py:41)."""

    MLA = "MLA"
    MHA = "MHA"


_MULTIPROCESSORS = 132
"""Those of an H200, by which Triton's decodes are split."""

_TRITON = "layers.attention.triton_backend"
_FLASHINFER = "layers.attention.flashinfer_backend"
_FLASHINFER_MLA = "layers.attention.flashinfer_mla_backend"
_UNUSED = "its parent's, for the kernels that it was made for: the TRT-LLM backends override all code that runs them"

_TRTLLM = ("trtllm_mha", "trtllm_mla")
_ON_LATENTS = ("flashinfer_mla", "flashmla")


class _OnHopper:
    """torch, with the properties of an H200."""

    cuda = SimpleNamespace(get_device_properties=_always(SimpleNamespace(multi_processor_count=_MULTIPROCESSORS)))

    def __getattr__(self, name: str) -> Any:
        """Return a member of torch."""
        return getattr(torch, name)


CHANGES = (
    ChangedName(
        "model_executor.forward_batch_info",
        "mambaish_config",
        _always(None),
        span("0.5.16"),
        "model_executor/forward_batch_info.py:40",
        "a stub would answer that the model has Mamba layers, whose batches are padded differently",
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
        _TRITON,
        "get_device_core_count",
        _always(_MULTIPROCESSORS),
        _ALL,
        "layers/attention/triton_backend.py:106",
        "a decode is split by the size of the GPU",
        kinds=("triton",),
    ),
    *(
        ChangedName(
            _TRITON,
            name,
            _always(None),
            versions,
            f"layers/attention/triton_backend.py:{line}",
            "a stub would answer that the model has recurrent layers",
            kinds=("triton",),
        )
        for name, versions, line in (
            ("hybrid_gdn_config", span("0.5.16", before="0.5.18"), 190),
            ("kimi_linear_config", span("0.5.16", before="0.5.18"), 191),
            ("linear_attn_model_spec", span("0.5.16", before="0.5.18"), 192),
            ("mambaish_config", span("0.5.18"), 130),
        )
    ),
    *(
        ChangedName(
            f"layers.attention.{module}",
            "AttentionArch",
            AttentionArch,
            versions,
            f"layers/attention/{module}.py:{line}",
            "a stub has no members that are equal to those of a model",
            kinds=kinds,
        )
        for module, versions, line, kinds in (
            ("flashattention_backend", _ALL, 330, ("fa3", "fa3_mla")),
            ("triton_backend", span("0.5.10"), 92, ("triton",)),
        )
    ),
    ChangedName(
        "layers.attention.trtllm_mla_backend",
        "can_use_set_mla_kv_concat_q",
        _always(False),
        span("0.5.17"),
        "layers/attention/trtllm_mla_backend.py:301",
        "a kernel compiled by nvcc would write the cache; the code without it is for GPUs before sm_90",
        kinds=("trtllm_mla",),
    ),
    ChangedName(
        "platforms.interface",
        "SRTPlatform.capabilities",
        _WithTriton(),
        span("0.5.22"),
        "platforms/interface.py:90",
        "the code without Triton is not a GPU's: it writes the cache through a mask, which no graph can hold",
    ),
    *(
        ChangedName(
            module,
            name,
            Inert,
            _ALL,
            f"layers/attention/{source}",
            _UNUSED,
            kinds=_TRTLLM,
            on_gpus=name.endswith("Wrapper"),
        )
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
    *(
        ChangedName(
            _FLASHINFER,
            name,
            value,
            _ALL,
            f"layers/attention/{source}",
            "the library's own needs a GPU",
            kinds=("flashinfer",),
            on_gpus=True,
        )
        for name, value, source in (
            ("BatchPrefillWithRaggedKVCacheWrapper", PackedWrapper, "flashinfer_backend.py:254"),
            ("BatchPrefillWithPagedKVCacheWrapper", PrefillWrapper, "flashinfer_backend.py:266"),
            ("BatchDecodeWithPagedKVCacheWrapper", DecodeWrapper, "flashinfer_backend.py:280"),
            ("fast_decode_plan", fast_decode_plan, "flashinfer_backend.py:641"),
            ("merge_state", merge_state, "flashinfer_backend.py:771"),
        )
    ),
    *(
        ChangedName(
            _FLASHINFER_MLA,
            name,
            value,
            _ALL,
            f"layers/attention/{source}",
            "the library's own needs a GPU",
            kinds=_ON_LATENTS,
            on_gpus=True,
        )
        for name, value, source in (
            ("BatchPrefillWithRaggedKVCacheWrapper", PackedWrapper, "flashinfer_mla_backend.py:251"),
            ("BatchMLAPagedAttentionWrapper", LatentWrapper, "flashinfer_mla_backend.py:256"),
        )
    ),
    ChangedName(
        "layers.attention.flashmla_backend",
        "torch",
        _OnHopper(),
        span("0.5.10"),
        "layers/attention/flashmla_backend.py:180",
        "the buffer of a schedule has the size of the GPU",
        kinds=("flashmla",),
    ),
    # Accessed through runtime_context.py (0.5.23: line 1831), which looks it up by this name each time.
    ChangedName(
        "utils.common",
        "is_sm90_supported",
        _always(True),
        span("0.5.19"),
        "layers/attention/trtllm_mha_backend.py:233",
        "XQA and fmha_v2 run on this GPU",
        kinds=_TRTLLM,
        on_hopper=True,
    ),
)


def changes_in(version: Version, *, hopper: bool = False) -> tuple[ChangedName, ...]:
    """Return the changes for a version, on the CPU or on a Hopper GPU."""
    return tuple(change for change in CHANGES if version in change.versions and (hopper or not change.on_hopper))
