"""SGLang's releases: their names, and the files that are unpacked."""

from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.sglang.kinds import KINDS
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS
from attnfuzz.kernels.sglang.states.kinds import STATE_KINDS

_ON_HOPPER: Final = ("trtllm_mha", "trtllm_mla")

SGLANG: Final = Project(
    name="sglang",
    title="SGLang",
    # The oldest version with one of the reported bugs.
    oldest=Version("0.5.9"),
    kinds=(*KINDS, *SPARSE_KINDS, *STATE_KINDS),
    source=Path("sglang", "srt", "layers", "attention"),
    wheel=("--python-version=3.11", "--platform=manylinux_2_34_x86_64"),
    suffixes=frozenset({".py", ".cu", ".cuh", ".h", ".hpp"}),
    left_out=("sglang/multimodal_gen/", "sglang/test/"),
    hashes=Path(__file__).with_name("wheels.json"),
    # The others take the interpreter's time, or have known failures in most cases.
    asked_for=tuple(name for name in (*KINDS, *SPARSE_KINDS, *STATE_KINDS) if name not in _ON_HOPPER),
    on_hopper=_ON_HOPPER,
    # The names of kernels in kernels/ops/kvcache.
    gpu_kinds=("store_cache", "set_mla_kv_buffer"),
)
