"""The setup of a server's process before a backend is built: its arguments, and its ranks.

All of it uses the release's own functions and defaults. With the model path "dummy", ServerArgs skip the code that
reads a model and queries GPUs (0.5.9 srt/server_args.py:703, 0.5.23 srt/arg_groups/pipeline.py). Only the process
groups are replaced; nothing is sent through them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from packaging.version import Version

from attnfuzz.kernels.sglang.padding import Ranks


@dataclass(frozen=True)
class Group:
    """A replacement of GroupCoordinator with a number of processes, of which this is the first."""

    world_size: int
    rank_in_group: int = 0
    ca_comm: None = None
    """Disables SGLang's own all-reduce, which gathers small decode batches unpadded if no rank drafts (0.5.23
    srt/layers/dp_attention.py:236): all others are padded."""


_SINCE_CONTEXT = Version("0.5.15")
"""The first version that keeps its arguments in srt/runtime_context.py (:555, reset_context)."""

_SINCE_RANKS = Version("0.5.21")
"""The first version that determines its ranks when its arguments are published (srt/runtime_context.py:228)."""

_SINCE_ATTENTION_REPLICAS = Version("0.5.22")
"""The first version with an argument for replicas of attention only (srt/arg_groups/fields/parallel.py:81)."""

_ATTENTION = "sglang.srt.layers.attention."

_BUFFERS = (
    ("trtllm_mha_backend", "global_zero_init_workspace_buffer"),
    ("trtllm_mla_backend", "global_zero_init_workspace_buffer"),
    ("trtllm_mla_backend", "global_cute_dsl_workspace_buffer"),
    ("flashinfer_backend", "global_workspace_buffer"),
    ("flashinfer_mla_backend", "global_workspace_buffer"),
)
"""Buffers shared by all backends of a server's process, in the modules of attention."""


def begin(
    loaded: Any,
    ranks: Ranks,
    model_config: Any,
    arguments: Mapping[str, Any],
    workspace_bytes: int,
    device: torch.device,
) -> Any:
    """Set up the process like that of a new server, without leftovers of the last one. Returns its ServerArgs.

    `arguments` are a server's, by the names of ServerArgs' fields. `model_config` needs hidden_size, dtype and
    hf_config. Backends built from now on allocate workspaces of `workspace_bytes`, on `device`.
    """
    _drop_buffers(loaded)
    _set_workspaces(loaded, workspace_bytes)
    common = {"model_path": "dummy", "device": device.type, "tp_size": ranks.processes, **arguments}
    version = loaded.release.version
    if version >= _SINCE_CONTEXT:
        loaded.module("sglang.srt.runtime_context").reset_context()
    if version < _SINCE_RANKS:
        return _begin_with_groups(loaded, ranks, model_config, common)
    return _begin_with_ranks(loaded, ranks, model_config, common)


def _drop_buffers(loaded: Any) -> None:
    for name, buffer in _BUFFERS:
        module = loaded.module(_ATTENTION + name)
        if hasattr(module, buffer):
            setattr(module, buffer, None)


def _set_workspaces(loaded: Any, size: int) -> None:
    """Set the size of workspaces.

    MHA reads it from the environment (0.5.9 trtllm_mha_backend.py:77), MLA from a constant (trtllm_mla_backend.py:44).
    """
    os.environ["SGLANG_FLASHINFER_WORKSPACE_SIZE"] = str(size)
    loaded.module(f"{_ATTENTION}trtllm_mla_backend").DEFAULT_WORKSPACE_SIZE_MB = -(-size // 2**20)


def _begin_with_groups(loaded: Any, ranks: Ranks, model_config: Any, common: Mapping[str, Any]) -> Any:
    """Start like workers of 0.5.9 to 0.5.20 (srt/model_executor/model_runner.py, init_torch_distributed)."""
    server_args = loaded.module("sglang.srt.server_args")
    given = server_args.ServerArgs(**_replicas(ranks), **common)
    server_args.set_global_server_args_for_scheduler(given)
    state = loaded.module("sglang.srt.distributed.parallel_state")
    # All groups of 0.5.9 srt/distributed/parallel_state.py, lines 1335 to 1462, without expert or pipeline parallelism.
    groups = {
        **dict.fromkeys(("_WORLD", "_TP", "_MOE_TP"), Group(ranks.processes)),
        "_ATTN_TP": Group(ranks.attention),
        **dict.fromkeys(("_ATTN_CP", "_MOE_DP", "_MOE_EP", "_PP"), Group(1)),
    }
    for name, group in groups.items():
        setattr(state, name, group)
    loaded.module("sglang.srt.layers.dp_attention").initialize_dp_attention(given, model_config)
    return given


def _begin_with_ranks(loaded: Any, ranks: Ranks, model_config: Any, common: Mapping[str, Any]) -> Any:
    """Start like schedulers of 0.5.21 to 0.5.23 (srt/managers/scheduler.py, run_scheduler_process)."""
    named = loaded.release.version >= _SINCE_ATTENTION_REPLICAS
    replicas = {"attn_dp_size": ranks.data_parallel} if named else _replicas(ranks)
    given = loaded.module("sglang.srt.server_args").ServerArgs(**replicas, **common)
    context = loaded.module("sglang.srt.runtime_context")
    context.publish(given, role="scheduler", ranks=context.SpawnRanks(world_rank=0))
    context.get_parallel().override_permanently(tp_group=Group(ranks.processes))
    dp_attention = loaded.module("sglang.srt.layers.dp_attention")
    dp_attention.initialize_dp_attention(given)
    dp_attention.init_dp_gathered_buffer(model_config)
    return given


def _replicas(ranks: Ranks) -> Mapping[str, Any]:
    return {"dp_size": ranks.data_parallel, "enable_dp_attention": ranks.data_parallel > 1}
