"""The pools of a server with sparse attention: latents, and the indexer's keys, in pages behind the dummy page."""

from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.kernels.sglang.pool import DUMMY_LOCATION, ServerPool
from attnfuzz.kernels.sglang.sparse.steps import SLOTS_OF_STEP
from attnfuzz.kernels.sparse.index_cache import cache_content, new_keys
from attnfuzz.kernels.sparse.inputs import NAN_BYTE, OpInputs, pool_pages
from attnfuzz.reference.case import Step
from attnfuzz.reference.sparse.case import KvFormat, SparseCase

_BYTES: Final = {KvFormat.LATENT: 1152, KvFormat.PACKED: 656}


class SparsePool(ServerPool):
    """The latents uint8 [slots, 1, bytes], and the indexer's keys uint8 [pages, page bytes].

    Page 0 is the dummy page, so that a page or slot of `inputs` is here the one that comes a page later.
    `before` are copies of both before the present step.
    """

    def __init__(self, case: SparseCase, bench: Bench) -> None:
        self._sparse = case
        self.page_size = case.geometry.page_size
        self._inputs = [OpInputs(case, index) for index in range(len(case.steps))]
        self._pages = 1 + pool_pages(case)
        dim = case.geometry.index_dim
        latents = torch.full(
            (self._pages * self.page_size, 1, _BYTES[case.geometry.format]), NAN_BYTE, dtype=torch.uint8
        )
        keys = torch.full((self._pages, self.page_size * (dim + 4)), NAN_BYTE, dtype=torch.uint8)
        # Padded tokens are written to the dummy page, and only finite numbers are.
        latents[: self.page_size] = 0
        keys[0] = 0
        # The last page of the pool has no owner, and NaN in it.
        self.paged = SimpleNamespace(poison_page=self._pages - 1)  # type: ignore[assignment]
        self.latents, self.index_keys = bench.memory.copy("kv_buffer", latents), bench.memory.copy("index_k", keys)
        self._bench = bench
        self.before = (latents, keys)

    @property
    def size(self) -> int:
        """The number of tokens that a server's allocator can hand out: all but the dummy page."""
        return (self._pages - 1) * self.page_size

    def locations(self, slot: int) -> list[int]:
        """Return the row of each position of a sequence, to the end of its last page."""
        inputs, request = self._inputs[slot // SLOTS_OF_STEP], slot % SLOTS_OF_STEP
        return [
            (page + 1) * self.page_size + offset
            for page in inputs.pages[request].tolist()
            for offset in range(self.page_size)
        ]

    def inputs_of(self, step: Step) -> OpInputs:
        """Return the inputs of a step with requests."""
        return self._inputs[step.requests[0].slot // SLOTS_OF_STEP]

    def write_before(self, step: Step) -> None:
        """Set the state of the pools before a forward of `step`, without the tokens that it writes itself."""
        if not step.requests:
            return
        inputs = self.inputs_of(step)
        new = inputs.all_slots[new_keys(inputs)]
        keys = torch.cat((self.before[1][:1], cache_content(inputs, new)))
        latents = torch.full_like(self.before[0], NAN_BYTE)
        latents[: self.page_size] = DUMMY_LOCATION
        own, _ = inputs.contents([request.kv_len for request in inputs.step.requests])
        kept = ~torch.isin(inputs.all_slots, new)
        latents[inputs.all_slots[kept] + self.page_size, 0] = _bytes(own)[kept]
        for pool, content in ((self.latents, latents), (self.index_keys, keys)):
            self._bench.memory.overwrite(pool, content)
        self.before = (latents, keys)


def _bytes(latents: torch.Tensor) -> torch.Tensor:
    return latents.reshape(len(latents), -1).contiguous().view(torch.uint8)


def release_sparse_pool(loaded: Any, case: SparseCase, pool: SparsePool, dtype: torch.dtype) -> Any:
    """Return the release's own DSATokenToKVPool, built by its __init__, over the memory of `pool`."""
    memory = loaded.module("sglang.srt.mem_cache.memory_pool")
    packed = case.geometry.format is KvFormat.PACKED
    made = memory.DSATokenToKVPool(
        size=pool.size,
        page_size=pool.page_size,
        kv_lora_rank=case.geometry.value_dim,
        dtype=dtype,
        qk_rope_head_dim=case.geometry.dim - case.geometry.value_dim,
        layer_num=1,
        device="cpu",
        index_head_dim=case.geometry.index_dim,
        enable_memory_saver=False,
        kv_cache_dim=_BYTES[KvFormat.PACKED] if packed else case.geometry.dim,
    )
    rows = pool.latents if packed else pool.latents.view(torch.bfloat16)
    buffers = {"kv_buffer": (made.kv_buffer, rows), "index_k_with_scale_buffer": (_index_buffer(made), pool.index_keys)}
    for name, (theirs, ours) in buffers.items():
        if theirs[0].shape != ours.shape:
            raise Unsupported(f"the release's {name} is {tuple(theirs[0].shape)}, not {tuple(ours.shape)}")
        theirs[0] = ours.view(theirs[0].dtype)
    return made


def _index_buffer(made: Any) -> list[torch.Tensor]:
    """Return the list that holds the indexer's keys of each layer (0.5.23: mem_cache/index_key_cache.py:31)."""
    buffers: list[torch.Tensor] = made.index_k_with_scale_buffer
    return buffers
