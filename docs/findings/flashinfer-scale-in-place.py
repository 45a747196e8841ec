"""FlashInfer's functions for one request raise if a scale is a tensor, but change it first. Needs a GPU.

A scale of 0.125 is passed twice, with a K scale of 2.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

QUERY = torch.ones(1, 1, 64, dtype=torch.bfloat16, device="cuda")
KEYS = torch.ones(4, 1, 64, dtype=torch.bfloat16, device="cuda")


def seen(name: str, scale: torch.Tensor) -> str:
    """Return the outcome of one call."""
    try:
        if name == "single_prefill_with_kv_cache":
            flashinfer.single_prefill_with_kv_cache(QUERY, KEYS, KEYS, sm_scale=scale, k_scale=2.0, backend="fa2")
        else:
            flashinfer.single_decode_with_kv_cache(QUERY[0], KEYS, KEYS, sm_scale=scale, k_scale=2.0)
    except TypeError:
        return "TypeError"
    return "an answer"


for name in ("single_prefill_with_kv_cache", "single_decode_with_kv_cache"):
    scale = torch.tensor([0.125], device="cuda")
    outcome = seen(name, scale)
    show(f"{name}: {outcome}, and the scale is {scale.item()} after it", wrong=scale.item() != 0.125)
finish()
