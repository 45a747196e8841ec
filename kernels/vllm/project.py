"""vLLM's releases: their names, and the files that are unpacked."""

from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.vllm.kinds import KINDS
from attnfuzz.kernels.vllm.sparse.kinds import SPARSE_KINDS
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS

ON_CPU: Final = tuple(name for name, kind in KINDS.items() if kind.on_cpu)
"""The kinds of servers without a GPU."""

ON_HOPPER: Final = ("triton", "triton_fp8", "flashinfer_sm90")
"""The kinds that run on a Hopper GPU as well."""

VLLM: Final = Project(
    name="vllm",
    title="vLLM",
    # Earlier ones were not tried.
    oldest=Version("0.18.0"),
    kinds=(*KINDS, *SPARSE_KINDS, *STATE_KINDS),
    # The CPU kinds have separate wheels. All releases of recurrent layers have the same bug (vLLM #53051).
    asked_for=(*ON_CPU, *STATE_KINDS),
    on_hopper=ON_HOPPER,
    source=Path("vllm", "v1", "attention", "backends"),
    wheel=("--python-version=3.11", *(f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 31, 35))),
    suffixes=frozenset({".py"}),
    left_out=("vllm/third_party/", "vllm/model_executor/models/"),
    hashes=Path(__file__).with_name("wheels.json"),
)
