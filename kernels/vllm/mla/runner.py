"""A release's model runner on a server for latent attention: its configuration, its buffers, and its layer.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from attnfuzz.kernels.releases.answers import ABSENT, ServerMock
from attnfuzz.kernels.vllm.mla.latent_pool import LatentPool
from attnfuzz.kernels.vllm.mla.layer import LatentModel, mla_layer
from attnfuzz.kernels.vllm.mla.prefills import MLA, chunk_capacity, most_requests, prefills_on_stand_ins
from attnfuzz.kernels.vllm.runner import ModelRunner
from attnfuzz.reference.case import Case, Step


class LatentRunner(ModelRunner):
    """The release's model runner with a layer of latent attention."""

    model_type: type[LatentModel] = LatentModel

    def _make_layer(self) -> Any:
        server = self._server
        _answer(self._config, server.case)
        capacity, common = chunk_capacity(server.case, self.most_requests), server.loaded.module(MLA)
        sizes = [server.case.geometry.head_dim_qk]
        # Cases may have smaller latents than models (mla_attention.py:1624).
        common.MLACommonBackend.get_supported_head_sizes = classmethod(lambda _: sizes)
        common.MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size = staticmethod(lambda _: capacity)
        assert isinstance(server.pool, LatentPool)
        return mla_layer(server.loaded, server.case, self._config, server.pool)

    @property
    def most_requests(self) -> int:
        """The maximum number of requests in a forward."""
        return most_requests(self._server.case)

    @contextmanager
    def _running(self, step: Step | None = None) -> Iterator[None]:
        with super()._running(step), self._process():
            yield

    @contextmanager
    def _process(self) -> Iterator[None]:
        """Enter the context of a process whose rank shares no keys."""
        state = self._server.loaded.module("vllm.distributed.parallel_state")
        with (
            mock.patch.object(state, "_DCP", ServerMock("dcp_group", world_size=1, rank_in_group=0)),
            prefills_on_stand_ins(),
            # v1/worker/workspace.py:261
            mock.patch.object(torch.accelerator, "empty_cache"),
        ):
            yield

    def _spec(self) -> Any:
        return self._layer.get_kv_cache_spec(self._config)


def _answer(config: Any, case: Case) -> None:
    """Set the fields of a server's configuration that only the code of latent attention reads."""
    latent = case.geometry.latent
    assert latent is not None
    # As VllmConfig sets it where graphs are compiled (config/vllm.py).
    config.compilation_config.custom_ops = ["none"]
    more: dict[str, dict[str, Any]] = {
        "model_config": {
            "get_head_size": lambda: case.geometry.head_dim_qk,
            "hf_text_config": ServerMock(
                "hf_text_config",
                # Only DeepSeek-V4 has these (0.26.0: mla_attention.py:1436).
                compress_ratios=ABSENT,
                q_lora_rank=None,
                kv_lora_rank=latent.rank,
                qk_nope_head_dim=latent.nope,
                qk_rope_head_dim=latent.rope,
                v_head_dim=latent.vo,
            ),
        },
        "cache_config": {"kv_cache_dtype_skip_layers": (), "enable_prefix_caching": True},
        "attention_config": {
            "mla_prefill_backend": None,
            "trtllm_ragged_backend": "trtllm-gen",
            "use_prefill_query_quantization": False,
            "flash_attn_version": None,
        },
        "parallel_config": {"pcp_shard_decode_requests": False, "pipeline_parallel_size": 1},
        "kernel_config": {"enable_jit_warmup": False},
    }
    for part, answers in more.items():
        vars(getattr(config, part)).update(answers)
