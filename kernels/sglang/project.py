"""SGLang's releases: their names, and the files that are unpacked."""

from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.releases.project import Project

SGLANG: Final = Project(
    name="sglang",
    title="SGLang",
    # The first of the reported bugs are in it.
    oldest=Version("0.5.9"),
    # By the values of --attention-backend.
    kinds=("trtllm_mha", "trtllm_mla"),
    source=Path("sglang", "srt", "layers", "attention"),
    wheel=("--python-version=3.11", "--platform=manylinux_2_34_x86_64"),
    suffixes=frozenset({".py", ".cu", ".cuh", ".h", ".hpp"}),
    left_out=("sglang/multimodal_gen/", "sglang/test/"),
    hashes=Path(__file__).with_name("wheels.json"),
    on_gpu=True,
    # By their names in kernels/ops/kvcache.
    gpu_kinds=("store_cache", "set_mla_kv_buffer"),
)
