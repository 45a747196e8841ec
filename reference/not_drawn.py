"""The features that a capability leaves out by default, in words: a clean campaign says nothing about them."""

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, Magnitude, Mask, QueryView


def not_drawn(can: Capability) -> list[str]:
    """Return the features of cases that are off unless a capability asks for them, and that `can` does not have.

    Those of latents, of writers of the KV cache and of a server's scheduling are other kinds of backends.
    """
    attends = not can.writes
    features = {
        "pools beyond 2^31": not can.pool_holes,
        "windows": attends and not can.windows,
        "sinks": attends and not can.sinks,
        "soft caps": attends and not can.soft_cap,
        "large and tiny magnitudes": attends and can.magnitudes == (Magnitude.PLAIN,),
        "masks other than causal": attends and not can.latent and can.masks == (Mask.CAUSAL,),
        "fp8 caches": not (can.fp8_kv or can.nvfp4_kv),
        "scales of K and V": not can.kv_scales,
        "padding": not can.padding,
        "graphs": not can.graph_modes,
        "other head dims of V": not (can.unequal_head_dims or can.latent),
        "strided queries": can.query_views == (QueryView.CONTIGUOUS,),
        "strided caches": can.kv_views == (KvView.SEPARATE,),
        "other forms of arguments": not can.arguments,
        "earlier uses": attends and not can.earlier_uses,
        "factors of 0 and below": attends and not can.edges,
    }
    return [feature for feature, left_out in features.items() if left_out]
