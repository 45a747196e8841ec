"""What a model hands to its attention layer: queries, and the keys and values of new tokens."""

from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.queries import place_queries
from attnfuzz.reference.case import Case


@dataclass(frozen=True)
class Inputs:
    """Of one forward: query [rows, q_heads, head_dim_qk], key and value [rows, kv_heads, head_dim].

    A query is the view that the case asks for: a slice of a fused row, or by itself. Latents have no value.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None

    @classmethod
    def place(cls, case: Case, bench: Bench, query: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor]) -> "Inputs":
        """Inputs in guarded memory."""
        key, value = keys
        return cls(
            place_queries(case, bench, query),
            bench.memory.copy("new_key", key),
            None if case.geometry.latent else bench.memory.copy("new_value", value),
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [each for each in (self.query, self.key, self.value) if each is not None]

    def fill(self, other: "Inputs") -> None:
        """Write other inputs over these, which a graph reads."""
        for mine, new in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(new)
