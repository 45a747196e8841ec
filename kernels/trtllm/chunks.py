"""Chunked prefix attention: which prefix tokens of which request a chunk covers.

The rule is SGLang's (prepare_chunked_prefix_cache_info): a chunk holds `capacity // batch` prefix tokens of every
request, so a request whose prefix has ended has no keys in the later chunks while others still do.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """Prefix tokens [starts[b], starts[b] + lengths[b]) of each request b."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def has_zero_kv(self) -> bool:
        """Whether some request has no key in this chunk: known on the CPU, so that no layer has to synchronise."""
        return 0 in self.lengths


def chunk_prefixes(prefixes: Sequence[int], capacity: int) -> list[Chunk]:
    """Cut prefixes of these lengths into chunks of at most `capacity` tokens over all requests."""
    if not any(prefixes):
        return []
    length = max(1, capacity // len(prefixes))
    count = -(-max(prefixes) // length)
    return [
        Chunk(
            starts=tuple(min(index * length, prefix) for prefix in prefixes),
            lengths=tuple(max(0, min(prefix - index * length, length)) for prefix in prefixes),
        )
        for index in range(count)
    ]
