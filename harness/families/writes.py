"""Writes of new tokens into a paged KV cache: cases of attention, whose result is the cache."""

from attnfuzz.harness.families.attention import AttentionFamily
from attnfuzz.reference.capability import Capability


class WritesFamily(AttentionFamily):
    """Writers of the KV cache."""

    def runs(self, capability: object) -> bool:
        return isinstance(capability, Capability) and capability.writes


WRITES = WritesFamily()
