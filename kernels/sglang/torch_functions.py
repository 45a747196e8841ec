"""torch's own attention below a release, launched like a kernel."""

from typing import Any

import torch

from attnfuzz.kernels.libraries.torch_sdpa import SDPA
from attnfuzz.kernels.releases.stand_ins import current


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Launch scaled_dot_product_attention on query [..., q, dim], key [..., kv, dim] and value [..., kv, dim_vo].

    Returns [..., q, dim_vo].
    """
    out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    arguments = {"query": query, "key": key, "value": value, **options}
    current(SDPA.name).launch(SDPA, {"out": out, **arguments})
    return out
