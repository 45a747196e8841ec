"""torch's own attention below a release, launched like a kernel."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.libraries.torch_sdpa import SDPA
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import current


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Launch scaled_dot_product_attention on query [..., q, dim], key [..., kv, dim] and value [..., kv, dim_vo].

    Returns [..., q, dim_vo].
    """
    out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    arguments = {"query": query, "key": key, "value": value, **options}
    current(SDPA.name).launch(SDPA, {"out": out, **arguments})
    return out


def attend_in_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, block_mask: Any, **options: Any
) -> torch.Tensor:
    """Launch it in place of flex_attention: on the keys of a BlockMask's blocks that its function also lets through.

    Raises ValueError, as torch does, for a mask of other lengths than those of query and key.
    """
    rows, keys = query.shape[-2], key.shape[-2]
    planned = tuple(map(int, block_mask.seq_lengths))
    if planned != (rows, keys):
        raise ValueError(f"block_mask was created for {planned} queries and keys, not for {(rows, keys)}")
    visited = _visited(block_mask)
    zero = torch.tensor(0)
    seen = block_mask.mask_mod(zero, zero, torch.arange(rows)[:, None], torch.arange(keys))
    return attend(query, key, value, attn_mask=seen & visited[:rows, :keys], **options)


def _visited(block_mask: Any) -> torch.Tensor:
    """Return whether the blocks with a row and a key are visited, bool [rows, keys], to the ends of the last blocks."""
    blocks = torch.zeros(block_mask.kv_indices.shape[-2:], dtype=torch.bool)
    for numbers, indices in (
        (block_mask.kv_num_blocks, block_mask.kv_indices),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    ):
        for row, number in enumerate([] if numbers is None else numbers[0, 0].tolist()):
            blocks[row, indices[0, 0, row, :number].long()] = True
    for dim, size in enumerate(block_mask.BLOCK_SIZE):
        blocks = blocks.repeat_interleave(size, dim)
    return blocks


def mask_of_blocks(mask_mod: Callable[..., torch.Tensor], *args: Any, **options: Any) -> Any:
    """Call create_block_mask with a function: 0.5.9 passes a method, whose arguments newer torch counts wrongly."""
    # Imported where it is used: no other kind needs it.
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415

    def seen(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return mask_mod(batch, head, row, key)

    # Guarded tensors can't be made inside its vmap.
    with outside():
        return create_block_mask(seen, *args, **options)


class Uncompiled:
    """torch, except that nothing is compiled: the kernel is launched by a function of this project."""

    _dynamo = SimpleNamespace(config=SimpleNamespace())

    @staticmethod
    def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        """Return the function."""
        return function

    def __getattr__(self, name: str) -> Any:
        """Return a member of torch."""
        return getattr(torch, name)
