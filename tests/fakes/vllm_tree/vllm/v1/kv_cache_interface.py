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
