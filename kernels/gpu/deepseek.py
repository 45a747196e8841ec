"""The latent KV cache of DeepSeek-V3, for which MLA kernels are compiled."""

from typing import Final

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent

DEEPSEEK_V3: Final = Bucket(
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    head_dim_qk=576,
    head_dim_vo=512,
    # Its 128 heads on 16, 8 and 1 ranks.
    heads=((8, 1), (16, 1), (128, 1)),
    page_sizes=(32, 64),
    layouts=(KvLayout.HND,),
    latent=Latent(rank=512, rope=64, nope=128, vo=128),
)
