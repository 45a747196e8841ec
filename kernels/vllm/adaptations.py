"""Changes to a release that make it run without a server, a GPU or a model.

They only concern imports, and leave the planning, padding, writes and calls of its model runner and FlashInfer backend
as they are. Each row names its versions and the line of vLLM behind it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from attnfuzz.kernels.releases.versions import Stubbed, span

_ALL = span("0.18.0")

_DRAFTERS: Final = (
    "custom_class_proposer",
    "dflash",
    "draft_model",
    "extract_hidden_states",
    "gemma4",
    "medusa",
    "ngram_proposer",
    "ngram_proposer_gpu",
    "step3p5",
    "suffix_decoding",
)

STUBBED = (
    # Packages that a server needs and attention does not: configs, tokenizers, requests and metrics.
    Stubbed("zmq", _ALL, "utils/network_utils.py:19"),
    Stubbed("cbor2", _ALL, "utils/hashing.py:12"),
    Stubbed("transformers", _ALL, "model_executor/layers/quantization/base_config.py:11"),
    Stubbed("huggingface_hub", _ALL, "transformers_utils/config.py:13"),
    Stubbed("cloudpickle", _ALL, "v1/serial_utils.py:14"),
    Stubbed("uvloop", _ALL, "v1/utils.py:26"),
    Stubbed("prometheus_client", _ALL, "v1/metrics/perf.py:15"),
    Stubbed("cachetools", _ALL, "v1/structured_output/utils.py:16"),
    Stubbed("diskcache", span("0.18.0", "0.26.0"), "v1/structured_output/utils.py:15"),
    Stubbed("llguidance", _ALL, "v1/structured_output/backend_guidance.py"),
    Stubbed("xgrammar", _ALL, "v1/structured_output/backend_xgrammar.py"),
    # Parts of vLLM that import those packages, or many others.
    Stubbed("vllm.entrypoints", _ALL, "parser/abstract_parser.py"),
    Stubbed("vllm.multimodal", _ALL, "config/multimodal.py"),
    Stubbed("vllm.transformers_utils", _ALL, "config/model.py"),
    Stubbed("vllm.renderers", _ALL, "config/model.py"),
    Stubbed("vllm.parser", _ALL, "reasoning/__init__.py"),
    Stubbed("vllm.tool_parsers", _ALL, "parser/abstract_parser.py"),
    Stubbed("vllm.usage", _ALL, "v1/utils.py"),
    # The model, its compiler, its sampler and its drafters.
    Stubbed("vllm.compilation", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.distributed.eplb", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.lora", _ALL, "v1/worker/gpu_input_batch.py"),
    Stubbed("vllm.model_executor.kernels", span("0.27.0"), "models/deepseek_v4/quant_config.py"),
    Stubbed("vllm.model_executor.layers.fused_moe", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.model_executor.layers.mamba", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.model_executor.layers.rotary_embedding", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.model_executor.model_loader", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.model_executor.layers.quantization.fp8", _ALL, "layers/quantization/utils/quant_utils.py"),
    Stubbed("vllm.model_executor.layers.quantization.online", _ALL, "layers/quantization/utils/quant_utils.py"),
    Stubbed("vllm.model_executor.models", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.model_executor.offloader", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.models", span("0.27.0"), "v1/attention/backends/mla/indexer.py"),
    Stubbed("vllm.v1.sample.ops", _ALL, "v1/sample/sampler.py"),
    Stubbed("vllm.v1.sample.rejection_sampler", _ALL, "v1/worker/gpu_model_runner.py"),
    Stubbed("vllm.v1.sample.sampler", _ALL, "v1/worker/gpu_model_runner.py"),
    *(Stubbed(f"vllm.v1.spec_decode.{each}", _ALL, "v1/worker/gpu_model_runner.py") for each in _DRAFTERS),
    # FlashAttention's compiled libraries, whose functions have stand-ins.
    Stubbed("vllm.vllm_flash_attn._vllm_fa2_C", _ALL, "vllm_flash_attn/flash_attn_interface.py:14"),
    Stubbed("vllm.vllm_flash_attn._vllm_fa3_C", _ALL, "vllm_flash_attn/flash_attn_interface.py:23"),
    Stubbed("vllm._aiter_ops", _ALL, "v1/attention/ops/rocm_aiter_mla_sparse.py"),
    # It imports the compiler of torch's extensions, and with it setuptools.
    Stubbed("vllm.distributed.device_communicators.pynccl_allocator", _ALL, "distributed/parallel_state.py"),
)


_RUNNER: Final = "v1/worker/gpu_model_runner.py"
_DRAFTER: Final = "v1/spec_decode/llm_base_proposer.py"
_WEIGHTS: Final = "model_executor/layers/quantization/utils/quant_utils.py"

PINNED: Final[Mapping[str, Sequence[str]]] = {
    name: (f"vllm/{file}:{line}",)
    for file, line, name in (
        (_WEIGHTS, 518, "vllm.model_executor.layers.quantization.fp8.Fp8LinearMethod"),
        (_WEIGHTS, 519, "vllm.model_executor.layers.quantization.online.fp8.Fp8PerTensorOnlineLinearMethod"),
        (_RUNNER, 7013, "vllm.model_executor.layers.mamba.ops.ssu_dispatch.initialize_mamba_ssu_backend()"),
        (_DRAFTER, 106, "vllm.transformers_utils.deepseek_v4_utils.get_compress_ratios()"),
        (_RUNNER, 952, "vllm.model_executor.offloader.create_offloader()"),
        (_RUNNER, 952, "vllm.model_executor.offloader.set_offloader()"),
        (_RUNNER, 666, "vllm.v1.sample.rejection_sampler.RejectionSampler()"),
        (_RUNNER, 563, "vllm.v1.sample.sampler.Sampler()"),
        (_RUNNER, 615, "vllm.v1.spec_decode.ngram_proposer.NgramProposer"),
        (_RUNNER, 617, "vllm.v1.spec_decode.ngram_proposer.NgramProposer()"),
    )
}
"""The names of stubs that a running release reads or calls. None affects a decision (lines of 0.33.0)."""


STACKED: Final = span("0.18.0", "0.26.0")
"""Releases whose pages hold all keys, then all values (0.25.1: v1/attention/backends/flashinfer.py:392)."""


SPLIT: Final = span("0.18.0", "0.23.0")
"""Releases whose FlashAttention pool is all keys, then all values (0.22.1: v1/attention/backends/flash_attn.py:149)."""


ALL_TO_ALL_APART: Final = span("0.18.0", "0.29.0")
"""Releases with a separate module for the all-to-all of outputs (0.28.0: v1/attention/ops/dcp_alltoall.py)."""


UNIT_Q_SCALE: Final = span("0.18.0", "0.22.0")
"""Releases whose Triton backend requires a query scale of 1 (0.20.2: v1/attention/backends/triton_attn.py:584)."""


BF16_SINKS: Final = span("0.18.0", "0.31.0")
"""Releases whose CPU kernels only take sinks in bfloat16 (0.31.0: v1/attention/backends/cpu_attn.py:443)."""


LISTED_LATENTS: Final = span("0.18.0", "0.19.0")
"""Releases whose layer has a list of latent caches, one per pipeline stage (0.18.0: mla_attention.py:421)."""


ONE_LATENT_WORKSPACE: Final = span("0.18.0", "0.25.0")
"""Releases that allocate the MLA workspace at import (0.23.0: v1/attention/backends/mla/flashinfer_mla.py:99)."""


PREFILL_FLAGS: Final = span("0.18.0", "0.22.0")
"""Releases that select the MLA prefill backend by one function per backend (0.20.2: mla_attention.py:1368)."""


PADDED_WITH_MINUS_ONE: Final = span("0.18.0", "0.20.0")
"""Releases whose block tables have -1 in rows of padding (0.19.1: v1/worker/gpu_model_runner.py:2150)."""
