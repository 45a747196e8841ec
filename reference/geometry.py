"""The shape of an attention layer: heads, head dims, pages, dtypes, and modifiers of the softmax."""

from enum import StrEnum

import msgspec

from attnfuzz.reference.dtypes import DType


class KvLayout(StrEnum):
    """Axis order of a KV page, in FlashInfer's names: HND is [head, slot, dim], NHD is [slot, head, dim]."""

    HND = "HND"
    NHD = "NHD"


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Head dims of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    The cache holds one latent of `rank + rope` elements per token, to which decode attends directly (K is the whole
    latent, V its first `rank` elements). Prefill attends to per-head keys of `nope + rope` and values of `vo` elements.
    """

    rank: int = 512
    rope: int = 64
    nope: int = 128
    vo: int = 128


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One attention layer, as seen by one rank of a server.

    `window_left` counts the keys that a query sees before its own (FlashInfer's convention: window_left + 1 keys in
    total; -1 is no window), and in a layer with a window and a full mask, `window_right` those after its own (-1: all).
    With an `attention_chunk`, keys and queries are cut into chunks of as many tokens, from the
    first key of a request on, and a query sees the keys of its own chunk alone, up to itself (Llama 4's
    attention_chunk_size; 0 is none). `soft_cap` c replaces a logit s by c * tanh(s / c); 0 is off. With `latent`,
    `kv_heads` is 1, and `head_dim_qk` and `head_dim_vo` are those of decode: rank + rope and rank.
    """

    q_heads: int
    kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    page_size: int
    dtype: DType = DType.BFLOAT16
    kv_dtype: DType = DType.BFLOAT16
    kv_layout: KvLayout = KvLayout.HND
    window_left: int = -1
    window_right: int = -1
    sinks: bool = False
    soft_cap: float = 0.0
    latent: Latent | None = None
    attention_chunk: int = 0

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads
