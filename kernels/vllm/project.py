"""vLLM's releases: their names, and the files that are unpacked."""

from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.releases.project import Project

VLLM: Final = Project(
    name="vllm",
    title="vLLM",
    # The first that was tried.
    oldest=Version("0.18.0"),
    # By the values of --attention-backend, in lower case; `engine` is its own scheduler above the first one.
    kinds=("flashinfer", "engine"),
    source=Path("vllm", "v1", "attention", "backends"),
    wheel=("--python-version=3.11", *(f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 31, 35))),
    suffixes=frozenset({".py"}),
    left_out=("vllm/third_party/", "vllm/model_executor/models/"),
    hashes=Path(__file__).with_name("wheels.json"),
)
