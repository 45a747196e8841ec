"""A server's configuration, as far as its model runner, metadata builder and layers read it.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from attnfuzz.kernels.releases.answers import ABSENT, ServerMock
from attnfuzz.kernels.vllm.quantisation import Quantisation
from attnfuzz.reference.case import Case, Mode, Step
from attnfuzz.reference.geometry import KvLayout

_VOCABULARY: Final = 1 << 30
"""The vocabulary size, against which vLLM checks drafts: more than the tokens of any case."""

RANKS: Final = 2
"""Number of data-parallel ranks: this one, and a simulated one, whose batches determine padding and graphs."""


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a server: its longest request, the requests and tokens of a step, and the sizes of its graphs."""

    model_len: int
    requests: int
    tokens: int
    graphs: tuple[int, ...]

    @classmethod
    def of(cls, case: Case, drafts: int) -> "ServerLimits":
        """Return the limits of a server with `drafts` draft tokens per request, as large as the largest step needs.

        Steps are padded to the sizes of graphs, which are whole requests (config/compilation.py, adjust_cudagraph_...).
        """
        sizes = sorted({graph_size(step, drafts) for step in case.steps} | {*_targets(case, drafts)})
        rows = max(max(len(step.requests), step.padded_batch) for step in case.steps)
        return cls(
            # Requests near it get no drafts (v1/worker/gpu_model_runner.py, _input_fits_in_drafter).
            model_len=max(1, *case.slot_lengths().values()) + case.max_len_slack + (drafts if drafting(case) else 0),
            requests=max(rows, -(-sizes[-1] // (1 + drafts))),
            tokens=sizes[-1],
            graphs=tuple(sizes),
        )


def graph_size(step: Step, drafts: int) -> int:
    """Return the size to which a step is padded on a server with `drafts` draft tokens per request."""
    stride, rows = 1 + drafts, step.padded_batch if step.mode is Mode.DRAFT_DECODE else step.padded_tokens
    return -(-rows // stride) * stride


def drafting(case: Case) -> bool:
    """Return whether a case's server has a draft model."""
    return any(step.mode is Mode.DRAFT_DECODE for step in case.steps)


def _targets(case: Case, drafts: int) -> Iterator[int]:
    """Yield the number of tokens of the target's largest forwards before draft decodes."""
    for step in case.steps:
        if step.mode is Mode.DRAFT_DECODE:
            yield max(1, len(step.requests)) * (1 + drafts)


def server_config(loaded: Any, case: Case, drafts: int, limits: ServerLimits) -> ServerMock:
    """Return a mock of a server's VllmConfig. Reading an attribute that it lacks ends the run."""
    geometry, quantisation = case.geometry, Quantisation.of(case)
    return ServerMock(
        "vllm_config",
        cache_config=ServerMock(
            "cache_config",
            cache_dtype=quantisation.cache_dtype,
            block_size=geometry.page_size,
            calculate_kv_scales=False,
            kv_sharing_fast_prefill=False,
            mamba_cache_mode="none",
            use_replayssm=False,
            get_resolved_kv_cache_layout=lambda: _layout(loaded, case),
        ),
        model_config=_model(case, limits, vocabulary=_VOCABULARY if drafting(case) else 1),
        attention_config=ServerMock(
            "attention_config",
            # Without it, prefills with such a cache take a wrapper unless queries are quantised (utils/flashinfer.py).
            use_trtllm_attention=True if quantisation.dequantises(loaded.kind) else None,
            disable_flashinfer_q_quantization=not quantisation.queries and quantisation.quantised,
            use_non_causal=False,
            flash_attn_version=None,
            # The default (0.33.0: config/attention.py).
            flash_attn_max_num_splits_for_cuda_graph=32,
        ),
        parallel_config=ServerMock(
            "parallel_config",
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
            dcp_comm_backend="ag_rs",
            data_parallel_size=RANKS,
            data_parallel_rank=0,
            tensor_parallel_size=1,
            # gloo's group (v1/worker/dp_utils.py, _get_device_and_group).
            disable_nccl_for_dp_synchronization=True,
            distributed_executor_backend="mp",
            use_ubatching=False,
            num_ubatches=1,
            enable_dbo=False,
            enable_eplb=False,
            is_moe_model=False,
        ),
        scheduler_config=ServerMock(
            "scheduler_config",
            max_num_seqs=limits.requests,
            max_num_batched_tokens=limits.tokens,
            async_scheduling=case.serving.asynchronous,
        ),
        compilation_config=_compilation(loaded, limits),
        speculative_config=_speculation(case, drafts),
        observability_config=ServerMock(
            "observability_config", cudagraph_metrics=False, enable_layerwise_nvtx_tracing=False
        ),
        num_speculative_tokens=drafts,
        use_v2_model_runner=False,
        offload_config=None,
        lora_config=None,
        load_config=None,
        kv_transfer_config=None,
        reasoning_config=None,
        mamba_config=None,
        # 0.20.2: forward_context.py:325
        kernel_config=ServerMock(
            "kernel_config",
            enable_jit_warmup=False,
            ir_op_priority=ServerMock("ir_op_priority", set_priority=contextlib.nullcontext),
        ),
    )


def _model(case: Case, limits: ServerLimits, *, vocabulary: int) -> ServerMock:
    geometry = case.geometry
    return ServerMock(
        "model_config",
        dtype=geometry.dtype.torch_dtype,
        max_model_len=limits.model_len,
        get_num_attention_heads=lambda _: geometry.q_heads,
        get_num_kv_heads=lambda _: geometry.kv_heads,
        get_head_size=lambda: geometry.head_dim_qk,
        get_inputs_embeds_size=lambda: 1,
        get_vocab_size=lambda: vocabulary,
        rswa_window=None,
        runner_type="generate",
        is_moe=False,
        logprobs_mode="raw_logprobs",
        use_fp64_gumbel=False,
        logits_processors=None,
        enable_prompt_embeds=False,
        is_multimodal_raw_input_only_model=False,
        is_mm_prefix_lm=False,
        is_diffusion=False,
        is_hybrid=False,
        uses_mrope=False,
        mrope_num_dims=0,
        uses_xdrope_dim=0,
        uses_alibi=False,
        supports_multimodal_inputs=False,
        is_encoder_decoder=False,
        disable_cascade_attn=True,
        attention_chunk_size=None,
        multimodal_config=None,
    )


def _compilation(loaded: Any, limits: ServerLimits) -> Any:
    """Return the release's own CompilationConfig: full graphs for decodes, piecewise graphs for other steps.

    A server without a GPU has no graphs (0.32.0: platforms/cpu.py:353).
    """
    module = loaded.module("vllm.config.compilation")
    own = module.CompilationConfig
    if loaded.kind.on_cpu:
        return own(
            mode=module.CompilationMode.NONE,
            cudagraph_mode=module.CUDAGraphMode.NONE,
            cudagraph_capture_sizes=[],
            max_cudagraph_capture_size=0,
        )
    graphs = list(limits.graphs)
    return own(
        mode=module.CompilationMode.VLLM_COMPILE,
        cudagraph_mode=module.CUDAGraphMode.FULL_AND_PIECEWISE,
        splitting_ops=list(own._attention_ops),  # noqa: SLF001 - the default, which VllmConfig sets
        cudagraph_capture_sizes=graphs,
        max_cudagraph_capture_size=graphs[-1],
    )


def _speculation(case: Case, drafts: int) -> ServerMock | None:
    if not drafts:
        return None
    if drafting(case):
        return _draft_model(case, drafts)
    return ServerMock(
        "speculative_config",
        method="ngram",
        num_speculative_tokens=drafts,
        parallel_drafting=False,
        enable_adaptive_verification=False,
        draft_model_config=None,
        use_eagle=lambda: False,
        uses_draft_model=lambda: False,
        use_ngram_gpu=lambda: False,
        uses_extract_hidden_states=lambda: False,
    )


def _draft_model(case: Case, drafts: int) -> ServerMock:
    """Return the configuration of speculation with a draft model that reads the target's hidden states (EAGLE)."""
    geometry = case.geometry
    width = geometry.q_heads * (geometry.latent.vo if geometry.latent else geometry.head_dim_vo)
    return ServerMock(
        "speculative_config",
        method="eagle",
        num_speculative_tokens=drafts,
        parallel_drafting=False,
        enable_adaptive_verification=False,
        draft_model_config=ServerMock(
            "draft_model_config",
            get_hidden_size=lambda: width,
            get_inputs_embeds_size=lambda: 1,
            # Only DeepSeek-V4 has these (0.32.0: v1/spec_decode/llm_base_proposer.py:105).
            hf_config=ServerMock("hf_config", compress_ratios=ABSENT, hc_mult=ABSENT),
            uses_mrope=False,
            uses_xdrope_dim=0,
            max_model_len=None,
        ),
        use_eagle=lambda: True,
        uses_draft_model=lambda: False,
        use_ngram_gpu=lambda: False,
        uses_extract_hidden_states=lambda: False,
        use_dflash=lambda: False,
        use_gemma4_mtp=lambda: False,
        use_step3p5_mtp=lambda: False,
        use_local_argmax_reduction=False,
        use_heterogeneous_vocab=False,
        rejection_sample_method="standard",
        draft_sample_method="greedy",
        disable_padded_drafter_batch=False,
        enforce_eager=False,
        # One draft after another (0.18.1: config/speculative.py).
        speculative_token_tree=str([(0,) * depth for depth in range(1, 1 + drafts)]),
    )


def _layout(loaded: Any, case: Case) -> Any:
    """Return the memory layout of a pool: HND on Blackwell (0.32.0: flashinfer.py:603)."""
    layouts = loaded.module("vllm.v1.kv_cache_interface").KVCacheLayout
    return layouts.LBHNC if case.geometry.kv_layout is KvLayout.HND else layouts.LBNHC
