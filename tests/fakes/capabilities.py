"""Capabilities with much left out: what a strategy must not draw."""

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, Mode
from attnfuzz.reference.dtypes import DType

NARROW = {
    "one mode, one of everything": Capability(
        modes=(Mode.DECODE,), dtypes=(DType.FLOAT32,), page_sizes=(16,), max_head_dim=8
    ),
    "draft extend only": Capability(
        modes=(Mode.DRAFT_EXTEND,), graph_modes=(Mode.DRAFT_EXTEND,), padding=True, empty_kv=False
    ),
    "graphs without padding": Capability(modes=tuple(Mode), graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY)),
    "long enough KV only": Capability(modes=tuple(Mode), empty_kv=False, kv_shorter_than_q=False, padding=True),
    "empty or long enough KV": Capability(modes=tuple(Mode), kv_shorter_than_q=False),
    "pools that need equal head dims": Capability(
        modes=(Mode.EXTEND,), unequal_head_dims=True, kv_views=(KvView.SEPARATE, KvView.PAIRED)
    ),
    "small latents": Capability(modes=tuple(Mode), latent=True, max_head_dim=72, empty_kv=False),
    "unusual pages": Capability(modes=(Mode.EXTEND, Mode.DECODE), page_sizes=(48,)),
}
