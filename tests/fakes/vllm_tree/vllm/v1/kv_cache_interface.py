"""What a layer says of its cache."""

from dataclasses import dataclass
from enum import Enum

import torch


class KVCacheLayout(Enum):
    """The order of axes in memory."""

    LBHNC = "LBHNC"


@dataclass(frozen=True)
class FullAttentionSpec:
    """The cache of a layer."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    sliding_window: int | None = None


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers with one kind of cache."""

    layer_names: list[str]
    kv_cache_spec: FullAttentionSpec


@dataclass(frozen=True)
class KVCacheConfig:
    """The pool."""

    num_blocks: int
    kv_cache_tensors: list[object]
    kv_cache_groups: list[KVCacheGroupSpec]
