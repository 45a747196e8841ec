"""Capabilities that lack many features, which a strategy must then not draw."""

from msgspec.structs import replace

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, Mode, QueryView
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent

HEAD_DIM_64 = Bucket(
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    head_dim_qk=64,
    head_dim_vo=64,
    heads=((2, 1), (4, 2), (16, 8)),
    page_sizes=(16, 64),
    layouts=(KvLayout.HND, KvLayout.NHD),
    sinks=(False, True),
    strides=(4,),
)
HEAD_DIM_128 = Bucket(
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    head_dim_qk=128,
    head_dim_vo=128,
    heads=((4, 1), (24, 8)),
    page_sizes=(64,),
    layouts=(KvLayout.HND,),
    windows=(127, 15),
    soft_caps=(0.0, 30.0),
)
FP8_DECODE = Bucket(
    dtype=DType.FLOAT16,
    kv_dtype=DType.FLOAT8_E4M3,
    head_dim_qk=128,
    head_dim_vo=128,
    heads=((8, 1), (64, 8)),
    page_sizes=(16, 32),
    layouts=(KvLayout.NHD,),
    strides=(2, 8),
    modes=(Mode.DECODE, Mode.TARGET_VERIFY),
)
COMPILED = Capability(
    device=Device.CUDA,
    buckets=(HEAD_DIM_64, HEAD_DIM_128, FP8_DECODE),
    modes=Mode.of_kernels(),
    graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
    kv_scales=True,
    padding=True,
    query_views=tuple(QueryView),
    kv_views=tuple(KvView),
)
"""For kernels that are compiled for few geometries, which run on a GPU."""

COMPILED_LATENTS = Capability(
    device=Device.CUDA,
    buckets=(
        Bucket(
            dtype=DType.BFLOAT16,
            kv_dtype=DType.BFLOAT16,
            head_dim_qk=576,
            head_dim_vo=512,
            heads=((8, 1), (20, 1), (128, 1)),
            page_sizes=(1, 32, 64),
            layouts=(KvLayout.HND,),
            latent=Latent(),
        ),
    ),
    modes=Mode.of_kernels(),
    graph_modes=tuple(mode for mode in Mode.of_kernels() if mode.speculative),
    padding=True,
    empty_kv=False,
)

NARROW = {
    "one mode, one of everything": Capability(
        modes=(Mode.DECODE,), dtypes=(DType.FLOAT32,), page_sizes=(16,), max_head_dim=8
    ),
    "a server that quantises": Capability(
        modes=(Mode.DECODE, Mode.EXTEND), fp8_kv=True, kv_scales=True, query_scales=True, kept_queries=True
    ),
    "draft extend only": Capability(
        modes=(Mode.DRAFT_EXTEND,), graph_modes=(Mode.DRAFT_EXTEND,), padding=True, empty_kv=False
    ),
    "graphs without padding": Capability(modes=Mode.of_kernels(), graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY)),
    "long enough KV only": Capability(modes=Mode.of_kernels(), empty_kv=False, kv_shorter_than_q=False, padding=True),
    "empty or long enough KV": Capability(modes=Mode.of_kernels(), empty_kv=True, kv_shorter_than_q=False),
    "pools that need equal head dims": Capability(
        modes=(Mode.EXTEND,), unequal_head_dims=True, kv_views=(KvView.SEPARATE, KvView.PAIRED)
    ),
    "small latents": Capability(modes=Mode.of_kernels(), latent=True, max_head_dim=72, empty_kv=False),
    "unusual pages": Capability(modes=(Mode.EXTEND, Mode.DECODE), page_sizes=(48,)),
    "dense page tables": Capability(modes=(Mode.DECODE, Mode.EXTEND), table_gaps=False),
    "head dims from a list": Capability(
        modes=(Mode.EXTEND, Mode.DECODE), head_dims=(80, 64, 192), unequal_head_dims=True
    ),
    "one head dim": Capability(modes=(Mode.EXTEND, Mode.DECODE), head_dims=(96,), unequal_head_dims=True),
    "scales of fp8 caches": Capability(modes=(Mode.EXTEND, Mode.DECODE), fp8_kv=True, kv_scales=(DType.FLOAT8_E4M3,)),
    "forwards of its own": Capability(
        modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.EXTEND),
        graph_modes=(Mode.DECODE,),
        padding=True,
        empty_kv=False,
        kv_shorter_than_q=False,
        schedules=True,
    ),
    "a draft model": Capability(
        modes=(Mode.DECODE, Mode.DRAFT_DECODE, Mode.TARGET_VERIFY),
        graph_modes=(Mode.DRAFT_DECODE,),
        padding=True,
        kv_shorter_than_q=False,
    ),
    "ranks that share keys": Capability(
        modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.EXTEND),
        buckets=(replace(HEAD_DIM_128, heads=((4, 1), (6, 1))),),
        shared_keys=(2, 4),
    ),
    "few programs": Capability(
        modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND, Mode.EXTEND),
        graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
        padding=True,
        buckets=(replace(HEAD_DIM_128, heads=((4, 1), (8, 1))),),
        shared_keys=(2, 4),
        most_programs=128,
    ),
    "few modules": COMPILED,
    "few modules for latents": COMPILED_LATENTS,
    "modules for head dims that differ": Capability(
        buckets=(replace(HEAD_DIM_128, head_dim_qk=192, heads=((16, 1), (80, 2))),),
        modes=(Mode.EXTEND, Mode.CHUNKED_PREFILL),
        kv_views=(KvView.SEPARATE, KvView.PAIRED),
    ),
}
