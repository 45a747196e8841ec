"""All known entry points by name."""

from collections.abc import Mapping
from typing import Final

from attnfuzz.kernels.entry_points.context import FmhaV2, PagedContext, Ragged
from attnfuzz.kernels.entry_points.decode import MlaDecode, PagedDecode
from attnfuzz.kernels.entry_points.states import Fixup, Merge
from attnfuzz.kernels.meaning.entry_point import EntryPoint

_KNOWN: Final[tuple[EntryPoint, ...]] = (
    PagedDecode(),
    PagedDecode("xqa_batch_decode_with_kv_cache", layout="NHD", cumulative="q_cu_seq_lens"),
    PagedContext(),
    PagedContext("trtllm_batch_context_with_custom_mask", None, masked=True),
    FmhaV2(),
    Ragged(),
    MlaDecode(),
    Merge("merge_state_in_place", (("v", "s"), ("v_other", "s_other")), in_place=True),
    Merge("merge_state", (("v_a", "s_a"), ("v_b", "s_b")), in_place=False),
    Fixup(),
)

ENTRY_POINTS: Final[Mapping[str, EntryPoint]] = {entry.name: entry for entry in _KNOWN}
"""The native kernels' entry points, and others that occur in dumps."""
