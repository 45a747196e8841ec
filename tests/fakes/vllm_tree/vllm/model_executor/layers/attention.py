"""Layers of attention."""

from abc import ABC, abstractmethod


class Attention(ABC):
    """A layer of attention."""

    @abstractmethod
    def get_attn_backend(self) -> object:
        """Its backend."""

    @abstractmethod
    def get_kv_cache_spec(self, vllm_config: object) -> object:
        """The form of its cache."""
