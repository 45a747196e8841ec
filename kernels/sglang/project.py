"""SGLang's releases: their names, and the files that are unpacked."""

from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.releases.project import Project

_KINDS: Final = ("trtllm_mha", "trtllm_mla")
"""The kinds of backends, by the values of --attention-backend."""

SGLANG: Final = Project(
    name="sglang",
    title="SGLang",
    # The oldest version with one of the reported bugs.
    oldest=Version("0.5.9"),
    kinds=_KINDS,
    source=Path("sglang", "srt", "layers", "attention"),
    wheel=("--python-version=3.11", "--platform=manylinux_2_34_x86_64"),
    suffixes=frozenset({".py", ".cu", ".cuh", ".h", ".hpp"}),
    left_out=("sglang/multimodal_gen/", "sglang/test/"),
    hashes=Path(__file__).with_name("wheels.json"),
    on_hopper=_KINDS,
    # The names of kernels in kernels/ops/kvcache.
    gpu_kinds=("store_cache", "set_mla_kv_buffer"),
)
