"""Causal attention with softmax scales of 0 and below. Needs torch; with FlashInfer and a GPU, its kernels as well.

Two queries see one and two keys, all of ones, whose values are 1 and 3: for any scale, the outputs are 1 and 2.
"""

import importlib.util

from _template import finish, requirements, show

with requirements("torch"):
    import torch

DIM = 64
SCALES = (0.5, 0.0, -0.5)


def of_torch(device: str, scale: float) -> list[float]:
    """Run torch's scaled_dot_product_attention with is_causal, by the fused kernel that it chooses for 16 bits."""
    ones = torch.ones(1, 1, 2, DIM, dtype=torch.bfloat16, device=device)
    value = torch.tensor([1.0, 3.0], dtype=torch.bfloat16, device=device).view(1, 1, 2, 1).expand(1, 1, 2, DIM)
    out = torch.nn.functional.scaled_dot_product_attention(ones, ones, value.contiguous(), is_causal=True, scale=scale)
    return [float(each) for each in out[0, 0, :, 0]]


def of_flashinfer(scale: float) -> list[float]:
    """Run FlashInfer's paged prefill on FA2."""
    import flashinfer  # noqa: PLC0415 - it may be missing

    def integers(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device="cuda")

    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    layer = {"causal": True, "sm_scale": scale, "q_data_type": torch.bfloat16}
    wrapper.plan(integers(0, 2), integers(0, 2), integers(0, 1), integers(1), 1, 1, DIM, 1, **layer)
    cache = torch.ones(2, 2, 1, 1, DIM, dtype=torch.bfloat16, device="cuda")
    cache[1, 1] = 3.0
    query = torch.ones(2, 1, DIM, dtype=torch.bfloat16, device="cuda")
    return [float(each) for each in wrapper.run(query, cache)[:, 0, 0]]


kernels = {"torch on cpu": lambda scale: of_torch("cpu", scale)}
if torch.cuda.is_available():
    kernels["torch on cuda"] = lambda scale: of_torch("cuda", scale)
    if importlib.util.find_spec("flashinfer"):
        kernels["FlashInfer"] = of_flashinfer
for name, attend in kernels.items():
    for scale in SCALES:
        seen = attend(scale)
        show(f"{name}, scale {scale}: expected [1.0, 2.0], seen {seen}", wrong=seen != [1.0, 2.0])
finish()
