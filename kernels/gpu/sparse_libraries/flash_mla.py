"""FlashMLA on Hopper, from the wheel sgl-flash-mla: attention over lists of latents, and decodes without lists.

Files are those of the kernels for Hopper in github.com/sgl-project/FlashMLA, which the wheel has under `use_legacy`.
"""

import importlib
from typing import Any, Final

import torch
from msgspec.structs import replace

from attnfuzz.kernels.gpu.sparse_libraries.prebuilt import PrebuiltSparse, on_gpu
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.case import KvFormat, ListOrder, SparseOp, Tail

_PACKED_BYTES: Final = 656
_PAGED_BYTES: Final = 584
_BLOCK: Final = 64
"""The entries of a list that a decode takes at once."""


def with_sinks(lse: torch.Tensor, attn_sink: torch.Tensor | None) -> torch.Tensor:
    """Return the log-sum-exp of keys and sinks, from that of keys [rows, heads].

    FlashMLA returns that of keys alone ("Have no affect on the returned softmax_lse", flash_mla_interface.py), and inf
    for rows without keys (tests/ref.py, lonely_q_mask).
    """
    of_keys = torch.where(lse == torch.inf, -torch.inf, lse)
    return of_keys if attn_sink is None else torch.logaddexp(of_keys, attn_sink)


def flash_mla_sparse_fwd(
    *,
    query: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Attend to latents of a prefill, in bfloat16."""
    if not len(query):
        return
    library = importlib.import_module("flash_mla")
    made, _, made_lse = library.flash_mla_sparse_fwd(
        query,
        keys,
        indices.unsqueeze(1),
        softmax_scale,
        d_v=out.shape[2],
        attn_sink=attn_sink,
        topk_length=topk_length,
        use_legacy=True,
    )
    out.copy_(made)
    lse.copy_(with_sinks(made_lse, attn_sink))


def flash_mla_with_kvcache(
    *,
    query: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    page_size: int,
    softmax_scale: float,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    extra_keys: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_page_size: int = 1,
    extra_topk_length: torch.Tensor | None = None,
) -> None:
    """Attend to packed latents. Each row is a request, as SGLang calls it (dsa_backend.py, _forward_flashmla_kv)."""
    if not len(query):
        return
    library = importlib.import_module("flash_mla")
    schedule, _ = library.get_mla_metadata()
    size = _PACKED_BYTES if query.shape[2] > out.shape[2] else _PAGED_BYTES
    second: dict[str, Any] = {}
    if extra_keys is not None and extra_indices is not None:
        # The kernel reads whole blocks of a list, so callers fill the last one.
        behind = -extra_indices.shape[1] % _BLOCK
        second = {
            "extra_k_cache": extra_keys.view(-1, extra_page_size, 1, size),
            "extra_indices_in_kvcache": torch.nn.functional.pad(extra_indices, (0, behind), value=-1).unsqueeze(1),
            "extra_topk_length": extra_topk_length,
        }
    made, made_lse = library.flash_mla_with_kvcache(
        query.unsqueeze(1),
        keys.view(-1, page_size, 1, size),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=out.shape[2],
        tile_scheduler_metadata=schedule,
        softmax_scale=softmax_scale,
        is_fp8_kvcache=True,
        indices=indices.unsqueeze(1),
        attn_sink=attn_sink,
        topk_length=topk_length,
        use_legacy=True,
        **second,
    )
    out.copy_(made[:, 0])
    lse.copy_(with_sinks(made_lse[:, :, 0], attn_sink))


def flash_mla_dense(
    *,
    query: torch.Tensor,
    keys: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    page_size: int,
    softmax_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Attend to all keys of each row, which is a request."""
    if not len(query):
        return
    library = importlib.import_module("flash_mla")
    schedule, _ = library.get_mla_metadata()
    made, made_lse = library.flash_mla_with_kvcache(
        query.unsqueeze(1),
        keys.view(-1, page_size, *keys.shape[1:]),
        block_table=tables,
        cache_seqlens=lengths,
        head_dim_v=out.shape[2],
        tile_scheduler_metadata=schedule,
        softmax_scale=softmax_scale,
        use_legacy=True,
    )
    out.copy_(made[:, 0])
    lse.copy_(with_sinks(made_lse[:, :, 0], None))


_SHARED: Final[dict[str, Any]] = {
    "packages": {"sgl-flash-mla": "1.0.0"},
    "alone": frozenset({"sgl-flash-mla"}),
    "contract": Contract(lse=LseBase.E),
}
_ATTENTION: Final[dict[str, Any]] = {"chains": ((SparseOp.ATTENTION,),), "gaps": False}
# Weights are rounded to bf16 after they were added up (phase1.cuh, online_softmax_and_rescale_o; scale_softmax).
_NOISE: Final = NoiseModel.rounded_probabilities(torch.bfloat16)
# The scale of a tile is rounded to bf16, and its product with a number again (splitkv_mla.cuh,
# dequant_and_save_bf16x8). The numbers of a tile share the first error, so it does not cancel out in a logit: 2^-9 is
# its root mean square.
_PACKED_NOISE: Final = replace(_NOISE, operands=2.0**-7, logits=2.0**-9)

PREFILL: Final = PrebuiltSparse(
    label="flash_mla:sparse_prefill",
    functions={"attention": flash_mla_sparse_fwd},
    capability=on_gpu(
        formats=(KvFormat.LATENT,),
        dims=((576, 512), (512, 512)),
        heads=(64, 128),
        # Two blocks of 64 at once (phase1.cuh: topk % (2*B_TOPK) == 0).
        top_ks=(128, 256, 384, 512),
        seconds=(False,),
        # "Invalid indices should be set to -1 or numbers >= s_kv"; NaN at a slot behind a count is to be avoided
        # (flash_mla_sparse_fwd, on topk_length).
        tails=(Tail.MINUS_ONE, Tail.PAST_THE_POOL),
        **_ATTENTION,
    ),
    noise_models={DType.BFLOAT16: _NOISE},
    **_SHARED,
)
_DECODE: Final[dict[str, Any]] = {"heads": (64, 128), "top_ks": (64, 128, 192, 256, 512), "ragged": (False,)}
DECODE: Final = PrebuiltSparse(
    label="flash_mla:sparse_decode",
    functions={"attention": flash_mla_with_kvcache},
    capability=on_gpu(
        formats=(KvFormat.PACKED,),
        page_sizes=(64, 128, 32, 16, 1),
        # "V3.2 does not support extra KV cache", "dynamic topk length" (splitkv_mla.cuh).
        seconds=(False,),
        counts=(False,),
        # "treats an index as invalid only when it is exactly -1" (flash_mla_with_kvcache).
        tails=(Tail.MINUS_ONE,),
        **_DECODE,
        **_ATTENTION,
    ),
    noise_models={DType.BFLOAT16: _PACKED_NOISE},
    **_SHARED,
)
# Scales are powers of two, with which numbers in e4m3 are exact in bf16.
DECODE_V4: Final = PrebuiltSparse(
    label="flash_mla:sparse_decode_v4",
    functions={"attention": flash_mla_with_kvcache},
    capability=on_gpu(
        formats=(KvFormat.PAGED,),
        # Even ones: latents are read 16 bytes at a time, and have 584.
        page_sizes=(64, 128, 32, 16, 8, 4),
        # Entries behind a count may be any number (splitkv_mla.cuh: "To prevent IMA when we have invalid (e.g.
        # INT_MAX) topk indexes outside topk_length"); without counts, only -1 is skipped.
        counts=(True,),
        **_DECODE,
        **_ATTENTION,
    ),
    noise_models={DType.BFLOAT16: _NOISE},
    **_SHARED,
)
_ALL_KEYS: Final = 512
# A list that is longer than any request has all keys: the kernel takes pages and lengths in its place.
DENSE: Final = PrebuiltSparse(
    label="flash_mla:dense",
    functions={"attention": flash_mla_dense},
    capability=on_gpu(
        by_row=True,
        formats=(KvFormat.LATENT,),
        dims=((576, 512), (512, 512)),
        heads=(16, 64, 128, 8),
        # "Currently page_block_size must be 64" (dense_decode.h).
        page_sizes=(64,),
        top_ks=(_ALL_KEYS,),
        longest=_ALL_KEYS,
        sinks=(False,),
        seconds=(False,),
        counts=(False,),
        ragged=(False,),
        orders=(ListOrder.RECENT,),
        tails=(Tail.MINUS_ONE,),
        **_ATTENTION,
    ),
    noise_models={DType.BFLOAT16: _NOISE},
    **_SHARED,
)
FLASH_MLA: Final = (PREFILL, DECODE, DECODE_V4, DENSE)
