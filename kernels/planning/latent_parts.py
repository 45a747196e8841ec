"""The parts of latents, which libraries take one by one."""

import torch


def latent_parts(latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split [..., rank + rope] for a kernel that copies both parts to where they came from.

    The split is that of models, whose rank is a power of 2 and larger than the rotary part; any other would do as well.
    """
    dim = latents.shape[-1]
    rank = 1 << (dim - 1).bit_length() - 1
    return latents[..., :rank], latents[..., rank:]
