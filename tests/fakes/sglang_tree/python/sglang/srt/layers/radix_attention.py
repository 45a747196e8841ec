"""An attention layer of a model."""

from typing import Any


class RadixAttention:
    """Its sizes and scales."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        v_head_dim: int = -1,
        sliding_window_size: int = -1,
    ) -> None:
        self.tp_q_head_num, self.tp_k_head_num, self.tp_v_head_num = num_heads, num_kv_heads, num_kv_heads
        self.head_dim, self.v_head_dim = head_dim, head_dim if v_head_dim == -1 else v_head_dim
        self.scaling, self.layer_id, self.sliding_window_size = scaling, layer_id, sliding_window_size
        self.k_scale: Any = None
        self.v_scale: Any = None
        self.k_scale_float: float | None = None
        self.v_scale_float: float | None = None
