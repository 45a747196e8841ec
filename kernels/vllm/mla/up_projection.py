"""The weights that project latents to keys and values for each head: they select elements, so nothing is rounded.

With them, a decode on latents and a prefill on projected keys and values are the same problem: head h has the keys and
values that `UpProjection` selects from the latents. Products with such a weight are exact, since each has at most one
summand that is not zero.
"""

from collections.abc import Iterator

import torch

from attnfuzz.reference.geometry import Latent


class UpProjection:
    """A layer's kv_b_proj, of `heads` heads from the `first` one on, as an MLA layer uses its ColumnParallelLinear.

    Head h selects elements of the latent from h * nope on for its keys, and from h * vo on for its values, wrapping
    around at the end. If a key has more elements than the latent, the rest of the key is zero, so the query's elements
    there have no effect.

    Attributes:
        weight: [heads * (nope + vo), rank].

    """

    quant_method = None

    def __init__(self, latent: Latent, heads: int, dtype: torch.dtype, *, first: int = 0) -> None:
        rank, nope, vo = latent.rank, latent.nope, latent.vo
        head = torch.arange(first, first + heads).unsqueeze(1)
        key, value = ((head * dim + torch.arange(dim)) % rank for dim in (nope, vo))
        self._chosen = torch.cat((key, value), dim=1).flatten()
        self._empty = (torch.arange(nope + vo) < nope) & (torch.arange(nope + vo) >= rank)
        self._empty = self._empty.repeat(heads)
        self._latent, self._heads = latent, heads
        self.params_dtype = dtype
        self.weight = torch.zeros(heads * (nope + vo), rank, dtype=dtype)
        self.weight[torch.arange(len(self._chosen)), self._chosen] = 1
        self.weight[self._empty] = 0

    def __call__(self, latents: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Project latents [..., rank] to [..., heads * (nope + vo)]. There is no bias."""
        return latents[..., self._chosen].masked_fill(self._empty, 0), None

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yield the weight, from which a layer infers its device."""
        yield self.weight

    def projected(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [tokens, heads, nope + rope] and values [tokens, heads, vo] of latents [tokens, rank + rope]."""
        latent, heads = self._latent, self._heads
        both = self(tokens[:, : latent.rank])[0].view(len(tokens), heads, latent.nope + latent.vo)
        rotated = tokens[:, None, latent.rank :].expand(-1, heads, -1)
        return torch.cat((both[..., : latent.nope], rotated), dim=-1), both[..., latent.nope :]
