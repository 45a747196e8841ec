"""A workspace holds what the kernel keeps there, and begins with semaphores that are zero."""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.entry_point import Breach

_SIZE = "attnfuzz.kernels.native.ops; FlashInfer, xqa_batch_decode_with_kv_cache: 8 MiB for semaphores"
_ZERO = "FlashInfer docstrings of workspace_buffer: zero-initialized on first use (MLA decode, XQA)"


def breaches(call: Attention) -> Iterator[Breach]:
    """A workspace that is too small, and semaphores that are not zero, where it is known what the kernel uses."""
    need = call.workspace()
    if need is None:
        return
    workspace = call.arguments["workspace_buffer"]
    if workspace.nbytes < need.total:
        text = (
            f"workspace_buffer has {workspace.nbytes} bytes, the call uses {need.total}: the kernel writes "
            f"{need.total - workspace.nbytes} past its end"
        )
        yield Breach(("workspace_buffer",), text, _SIZE)
    if workspace.is_meta or not workspace.is_contiguous():
        return
    semaphores = workspace.flatten().view(torch.uint8)[: need.semaphores]
    if semaphores.any():
        first = int(semaphores.nonzero()[0])
        text = (
            f"workspace_buffer has a semaphore that is not zero, in byte {first} of {need.semaphores}: some split of "
            "the keys is taken for the last one, and the rows behind it are merged too early or never"
        )
        yield Breach(("workspace_buffer",), text, _ZERO)
