"""The release's own HybridReqToTokenPool over guarded memory, and the requests to which it hands slots."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.sglang.states.kinds import CHANNELS, LinearKind
from attnfuzz.reference.recurrent.case import StateCase

LAYER: Final = 3
"""The id of the case's layer in its model."""

OTHER_WIDTH: Final = 4
"""The taps of the layer's convolution in a case of its recurrence."""


@dataclass(frozen=True)
class StatePools:
    """The states of a case: `own` [slots, ...], and behind them `drafts` of a verify [rows, drafts + 1, ...] or None.

    Those of a convolution's drafts are the release's own.
    """

    own: torch.Tensor
    drafts: torch.Tensor | None


def part_dims(case: StateCase, kind: LinearKind) -> tuple[int, int, int]:
    """Return the channels of queries, of keys and of values in the inputs of the layer's convolution.

    Those are C, B and x of Mamba-2.
    """
    shape = case.shape
    if kind.convolves:
        part = shape.value_dim // CHANNELS
        return part, part, shape.value_dim - 2 * part
    return shape.heads * shape.key_dim, shape.heads * shape.key_dim, shape.value_heads * shape.value_dim


def release_pool(
    memory_pool: Any, case: StateCase, kind: LinearKind, pools: StatePools, arguments: dict[str, Any]
) -> Any:
    """Return the release's pool of requests and states, built by its __init__, with the states of `pools`.

    `arguments` are those of its req_to_token.
    """
    drafts = case.drafts + 1 if case.drafts else None
    given = {
        "mamba_size": pools.own.shape[0] - 1,
        "mamba_spec_state_size": arguments["size"],
        "cache_params": _cache_params(case, kind),
        "mamba_layer_ids": [LAYER],
        # --mamba-scheduler-strategy no_buffer
        "enable_mamba_extra_buffer": False,
        "speculative_num_draft_tokens": drafts,
        "speculative_eagle_topk": 1 if drafts else None,
        **arguments,
    }
    made = memory_pool.HybridReqToTokenPool
    known = inspect.signature(made.__init__).parameters
    pool = made(**{name: value for name, value in given.items() if name in known})
    pool.mamba_pool.mamba_cache = replace(pool.mamba_pool.mamba_cache, **_states(pool, kind, pools))
    return pool


def _states(pool: Any, kind: LinearKind, pools: StatePools) -> Mapping[str, Any]:
    """Return the fields of the release's cache that lie in `pools`."""
    cache = pool.mamba_pool.mamba_cache
    own, drafts = pools.own.unsqueeze(0), pools.drafts
    if not kind.convolves:
        _check(cache.temporal, own)
        return {"temporal": own} if drafts is None else {"temporal": own, "intermediate_ssm": drafts.unsqueeze(0)}
    if kind.decays_by_channel:
        own = own.transpose(-1, -2)
    _check(cache.conv[0], own)
    return {"conv": [own]}


def _check(theirs: torch.Tensor, ours: torch.Tensor) -> None:
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        raise ValueError(f"the release's states are {tuple(theirs.shape)}, ours {tuple(ours.shape)}")


def _cache_params(case: StateCase, kind: LinearKind) -> Any:
    """Return the members of Mamba2CacheParams that a pool reads, of one rank."""
    dtype, state = case.dtype.torch_dtype, case.state_dtype.torch_dtype
    temporal = (1, 1, 1) if kind.convolves else case.state_shape
    width = case.shape.width if kind.convolves else OTHER_WIDTH
    conv = (sum(part_dims(case, kind)), width - 1)
    return SimpleNamespace(
        shape=SimpleNamespace(
            # Kimi Linear's convolution has its inputs with all channels one after another (configs/mamba_utils.py:350).
            conv=[conv[::-1] if kind.decays_by_channel else conv],
            temporal=temporal,
            conv_kernel=width,
            disable_conv_window_dedup=kind.decays_by_channel,
            num_k_heads_per_tp=case.shape.heads,
        ),
        dtype=SimpleNamespace(conv=dtype, temporal=state),
        layers=[LAYER],
        is_kda=kind.decays_by_channel,
        mamba_cache_per_req=0,
    )


def kept_inputs(pool: Any, kind: LinearKind) -> torch.Tensor:
    """Return the inputs of a convolution that a verify keeps [rows, channels, width - 1 + drafts], without overlaps."""
    windows = pool.mamba_pool.mamba_cache.intermediate_conv_window[0][0]
    if kind.decays_by_channel:
        windows = windows.transpose(-1, -2)
    return torch.cat((windows[:, 0], windows[:, 1:, :, -1].transpose(1, 2)), dim=-1)


class SlotRequest:
    """A request as its pool sees it (0.5.23: managers/schedule_batch.py:980). Later releases keep a part in `kv`."""

    def __init__(self, row: int) -> None:
        self.req_pool_idx: int | None = row
        self.mamba_pool_idx: torch.Tensor | None = None
        self.mamba_ping_pong_track_buffer = None
        self.mamba_cow_src_index = None
        self.mamba_needs_clear = False
        self.is_chunked = self.inflight_middle_chunks = 1
        self.kv_committed_len = self.kv_allocated_len = 1

    def is_dllm(self) -> bool:
        """Return that it is no request of a diffusion model."""
        return False

    @property
    def kv(self) -> "SlotRequest":
        """Its part that concerns caches: the request itself."""
        return self

    @property
    def holds_mamba(self) -> bool:
        """Whether it has a slot."""
        return self.mamba_pool_idx is not None

    @property
    def holds_kv(self) -> bool:
        """Whether it has a row."""
        return True


def hand_out(pool: Any, request: SlotRequest, slot: int) -> None:
    """Let the release's pool give a request the slot, as the only free one."""
    allocator = getattr(pool, "mamba_allocator", pool.mamba_pool)
    allocator.free_slots = torch.tensor([slot], dtype=torch.int64)
    pool.alloc([request])


def cleared(request: SlotRequest) -> bool:
    """Return whether the release defers clearing the request's slot to its first forward, once."""
    deferred, request.mamba_needs_clear = request.mamba_needs_clear, False
    return deferred
