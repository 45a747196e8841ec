"""The rows of requests, and the keys and values of their tokens."""

from typing import Any

import torch


class ReqToTokenPool:
    """A row for each request, with the location of each of its tokens."""

    def __init__(self, size: int, max_context_len: int, device: str, enable_memory_saver: bool) -> None:
        del enable_memory_saver
        self.size = size
        self.req_to_token = torch.zeros((size, max_context_len), dtype=torch.int32, device=device)
        self.free_slots = list(range(size))


class KVCache:
    """Buffers of one layer; a dummy page lies before what a server hands out."""

    def __init__(self, size: int, page_size: int, dtype: torch.dtype, device: str) -> None:
        self.rows, self.page_size, self.device = size + page_size, page_size, device
        self.dtype, self.store_dtype = dtype, torch.uint8 if dtype.itemsize == 1 else dtype
        self._create_buffers()

    def _create_buffers(self) -> None:
        raise NotImplementedError

    def _zeros(self, heads: int, dim: int) -> list[torch.Tensor]:
        return [torch.zeros((self.rows, heads, dim), dtype=self.store_dtype, device=self.device)]

    def _store(self, buffer: torch.Tensor, at: torch.Tensor, new: torch.Tensor, scale: float | None) -> None:
        if new.dtype != self.dtype:
            new = (new if scale is None else new / scale).to(self.dtype)
        buffer[at] = new.view(self.store_dtype)


class MHATokenToKVPool(KVCache):
    """Keys and values of each head."""

    def __init__(
        self,
        *,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        v_head_dim: int,
        device: str,
        **_others: Any,
    ) -> None:
        self._shapes = (head_num, head_dim), (head_num, v_head_dim)
        super().__init__(size, page_size, dtype, device)

    def _create_buffers(self) -> None:
        self.k_buffer, self.v_buffer = (self._zeros(*shape) for shape in self._shapes)

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What is cached of a layer."""
        return self.k_buffer[layer_id].view(self.dtype), self.v_buffer[layer_id].view(self.dtype)

    def set_kv_buffer(self, layer: Any, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *scales: Any) -> None:
        """Cache tokens at these locations."""
        k_scale, v_scale = scales or (None, None)
        self._store(self.k_buffer[layer.layer_id], at, k, k_scale)
        self._store(self.v_buffer[layer.layer_id], at, v, v_scale)


class MLATokenToKVPool(KVCache):
    """Latents, and the part of keys that has positions."""

    def __init__(
        self,
        *,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        device: str,
        **_others: Any,
    ) -> None:
        self._width = kv_lora_rank + qk_rope_head_dim
        super().__init__(size, page_size, dtype, device)

    def _create_buffers(self) -> None:
        self.kv_buffer = self._zeros(1, self._width)
