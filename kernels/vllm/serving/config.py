"""The parts of a server's configuration that its scheduler reads, in addition to those of `kernels.vllm.config`.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from typing import Any, Final

from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.vllm.config import ServerLimits
from attnfuzz.reference.case import Case

_LOOKAHEAD: Final = ("num_lookahead_tokens", "num_prefill_lookahead_tokens", "num_hash_lookahead_tokens")
"""The numbers of lookahead tokens: those that a draft model needs blocks for, and those that it, and the hash of a
block, read ahead in a prompt.

They are properties of a VllmConfig (config/vllm.py:626); early releases have only some of them or none.
"""


def add_scheduler(loaded: Any, config: Any, case: Case, limits: ServerLimits, blocks: int) -> None:
    """Add the scheduler's parts to the VllmConfig `config`, for a pool of `blocks`, with the defaults of a server."""
    # An asynchronous server schedules a forward while another one runs.
    concurrent = 1 + case.serving.asynchronous
    _set(
        config,
        kv_events_config=None,
        ec_transfer_config=None,
        ec_manager_config=ServerMock("ec_manager_config", get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=ServerMock("aux_output_config", enabled=False),
        is_mm_encoder_only=False,
        # 0.28.0 alone: v1/core/sched/scheduler.py:97
        is_encoder_only=False,
        # config/vllm.py:590
        max_concurrent_batches=concurrent,
        max_in_flight_tokens=concurrent * limits.tokens,
    )
    _set(
        config.cache_config,
        num_gpu_blocks=blocks,
        enable_prefix_caching=True,
        enable_mamba_shared_prefix_checkpoint=False,
        prefix_cache_retention_interval=None,
    )
    _set(
        config.model_config,
        is_diffusion=False,
        is_hybrid=False,
        return_sampling_mask=False,
        # 0.29.0: v1/core/sched/scheduler.py:91 and 361
        uses_xdrope=False,
        enable_return_routed_experts=False,
    )
    _set(
        config.observability_config,
        kv_cache_metrics=False,
        per_request_spec_decode_metrics="none",
        enable_mfu_metrics=False,
    )
    _set(config.parallel_config, data_parallel_index=0, pipeline_parallel_size=1)
    _set(
        config.scheduler_config,
        max_num_scheduled_tokens=min(case.serving.budget, limits.tokens) or limits.tokens,
        max_num_active_seqs=None,
        policy="fcfs",
        enable_chunked_prefill=True,
        long_prefill_token_threshold=0,
        long_prefill_token_threshold_adaptive=False,
        prefill_schedule_interval=1,
        scheduler_reserve_full_isl=True,
        watermark=0.0,
    )
    if config.speculative_config is not None:
        _set(
            config.speculative_config,
            num_speculative_tokens_per_batch_size=None,
            max_num_new_slots_for_drafting=0,
            # A draft model's keys depend on the next token (config/speculative.py:2136).
            use_eagle_block_drop=config.speculative_config.use_eagle,
            needs_eagle_block_drop=config.speculative_config.use_eagle,
            disable_eagle_block_drop=False,
            disable_lookahead_block_hashes=False,
            use_multi_module_mtp=lambda: False,
            disable_padded_drafter_batch=False,
            use_dflash=lambda: False,
            # 0.26.0: v1/core/sched/scheduler.py:259
            use_dspark=lambda: False,
        )
    own = loaded.module("vllm.config.vllm").VllmConfig
    for name in _LOOKAHEAD:
        # Later releases read the other properties too.
        _set(config, **{name: getattr(own, name).fget(config) if hasattr(own, name) else 0})


def _set(mock: Any, **answers: Any) -> None:
    for name, answer in answers.items():
        setattr(mock, name, answer)
