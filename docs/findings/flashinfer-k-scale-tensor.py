"""FlashInfer raises if scales are tensors, which annotations and docstrings allow. Needs FlashInfer and a GPU.

A query of ones has logits of 0 and 2 for two keys, whose values are 0 and 1.
"""

from collections.abc import Callable
from typing import Any

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()


QUERY = torch.ones(1, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(1, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[0, 0, 1], CACHE[0, 1, 1] = 0.25, 1.0
wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend="fa2")
wrapper.plan(ints(0, 1), ints(0, 1), ints(0), ints(2), 1, 1, 64, 16, q_data_type=torch.bfloat16)


def persistent() -> flashinfer.BatchAttention:
    """Return a BatchAttention planned for the same batch."""
    made = flashinfer.BatchAttention("NHD", device="cuda")
    lists = (ints(0, 1), ints(0, 1), ints(0), ints(2))
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    made.plan(*lists, 1, 1, 64, 64, 16, causal=True, **types)
    return made


def answer(run: Callable[..., Any], **scale: float | torch.Tensor) -> str:
    """Return the first element of the output, or the exception."""
    try:
        found = run(QUERY, CACHE, **scale)
    except TypeError as error:
        first, _, last = str(error).partition(" when calling")
        return f"TypeError: {first}{last[last.rfind('. Expected') :]}"
    out = found[0] if isinstance(found, tuple) else found
    return f"{out.flatten()[0].item():.3f}"


for name, run in {"paged prefill": wrapper.run, "BatchAttention": persistent().run}.items():
    for scale in ("k_scale", "v_scale"):
        number = answer(run, **{scale: 0.5})
        tensor = answer(run, **{scale: torch.tensor([0.5], device="cuda")})
        show(f"{name}, {scale} as a float: {number}; as a tensor: {tensor}", wrong=number != tensor)
finish()
