"""Paged attention of Hugging Face transformers, as continuous batching runs it on CPUs.

A step is one call: keys and values of all requests are gathered by index, one request after another, as
PagedAttentionCache.update does, and an additive mask separates the requests. The mask is made by continuous batching's
own build_attention_mask, from the lengths; then its implementations "paged|eager" and "sdpa" attend.
"""

from collections.abc import Mapping
from dataclasses import replace as copy
from types import SimpleNamespace
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.requests import dense_requests, gathered
from attnfuzz.kernels.libraries.torch_attention import fused_noise, unfused_noise
from attnfuzz.reference.capability import FLOATS, Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import ROUNDOFF

# A model's forward pass writes the keys of its tokens before it attends, so that each query has its own: the causal
# diagonal of build_attention_mask (generation/continuous_batching/utils.py) assumes so.
SDPA_CAN = Capability(
    modes=Mode.of_kernels(),
    layouts=(KvLayout.NHD,),
    windows=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    # The library is imported in a worker's first case.
    patience=2.0,
    edges=UNSAID_FACTORS,
)
# Models with sinks or a soft cap are marked _supports_sdpa = False (models/gpt_oss, models/gemma2).
EAGER_CAN = replace(SDPA_CAN, soft_cap=True)
# Sinks are a parameter of the model, in its dtype.
SINKS_CAN = replace(SDPA_CAN, sinks=True, sinks_dtype=None)


def arrange(*, seq_lens: torch.Tensor, cum_seq_lens_q: torch.Tensor, **paged: Any) -> Mapping[str, Any]:
    """Gather keys and values [1, kv_heads, keys of all requests, head dim], and the ends of the requests."""
    requests = dense_requests(seq_lens=seq_lens, cum_seq_lens_q=cum_seq_lens_q, **paged)
    key, value = (tokens.transpose(0, 1)[None] for tokens in gathered(requests))
    return {"key": key, "value": value, "key_ends": [0, *seq_lens.cumsum(0).tolist()]}


def attend_eagerly(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_ends: list[int],
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
) -> None:
    """Attend by the implementation "paged|eager"; a soft cap is passed as Gemma 2 does."""
    from transformers.integrations.eager_paged import (  # noqa: PLC0415 - in workers alone
        eager_paged_attention_forward,
    )

    module = _layer(query, key)
    if sinks is not None:
        module.sinks = sinks
    mask = _mask(query, cum_seq_lens_q, key_ends, window_left)
    states = (query.transpose(0, 1)[None], key, value)
    got, _ = eager_paged_attention_forward(
        module, *states, mask, scale, cache=_Gathered(key, value), softcap=soft_cap or None
    )
    out.copy_(got[0])


def attend_by_sdpa(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_ends: list[int],
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    window_left: int,
) -> None:
    """Attend by the implementation "sdpa"."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415 - in workers alone

    mask = _mask(query, cum_seq_lens_q, key_ends, window_left)
    states = (query.transpose(0, 1)[None], key, value)
    got, _ = sdpa_attention_forward(_layer(query, key), *states, mask, scaling=scale)
    out.copy_(got[0])


class _Gathered:
    """A PagedAttentionCache whose tokens have been gathered: one layer, one update."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self._tokens = key, value

    def update(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of all requests."""
        return self._tokens


def _layer(query: torch.Tensor, key: torch.Tensor) -> SimpleNamespace:
    """Return the attributes of a model's attention layer that the implementations read."""
    return SimpleNamespace(layer_idx=0, num_key_value_groups=query.shape[1] // key.shape[1], is_causal=True)


def _mask(query: torch.Tensor, query_ends: torch.Tensor, key_ends: list[int], window_left: int) -> torch.Tensor:
    """Make the additive mask [1, 1, rows, keys], as ContinuousBatchingIOs prepares it."""
    from transformers.generation.continuous_batching.utils import (  # noqa: PLC0415 - in workers alone
        build_attention_mask,
    )

    lowest = torch.finfo(query.dtype).min
    mask = torch.full((1, 1, len(query), key_ends[-1]), lowest, dtype=query.dtype)
    # A window counts a query's own key in; 1 stands for none.
    build_attention_mask(mask, query_ends.tolist(), key_ends, window_left + 1 if window_left >= 0 else 1)
    return mask


PACKAGES = {"transformers": "5.23", "torch": "2.7"}
"""torch computes: a calibration holds for its version too."""

PAGED_EAGER = LibraryBackend(
    attend_eagerly,
    label="transformers:paged_eager",
    extra="transformers",
    packages=PACKAGES,
    capability=EAGER_CAN,
    noise_models={dtype: unfused_noise(dtype) for dtype in FLOATS},
    arrange=arrange,
)
# Beside a sink, the largest logit is subtracted in the dtype of the queries.
PAGED_EAGER_SINKS = copy(
    PAGED_EAGER,
    label="transformers:paged_eager_sinks",
    variant_of=PAGED_EAGER.label,
    capability=SINKS_CAN,
    noise_models={dtype: replace(unfused_noise(dtype), shifted=ROUNDOFF[dtype.torch_dtype]) for dtype in FLOATS},
)
PAGED_SDPA = LibraryBackend(
    attend_by_sdpa,
    label="transformers:paged_sdpa",
    extra="transformers",
    packages=PACKAGES,
    capability=SDPA_CAN,
    noise_models={dtype: fused_noise(dtype) for dtype in FLOATS},
    arrange=arrange,
)
TRANSFORMERS_BACKENDS = (PAGED_EAGER, PAGED_EAGER_SINKS, PAGED_SDPA)
