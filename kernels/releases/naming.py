"""The names of backends of releases and source trees.

sglang==0.5.9:trtllm_mha is that of a release and sglang@PATH:trtllm_mha that of a source tree, on the CPU. On a Hopper
GPU they are hopper:sglang==0.5.9:trtllm_mha and hopper:sglang@PATH:trtllm_mha.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.version import Version

from attnfuzz.kernels.interface.engine import EngineError
from attnfuzz.kernels.releases.project import Project

ON_HOPPER = "hopper:"


class BadName(EngineError):
    """A name that begins like an engine's and names none of its backends; the message suggests a correct one."""


@dataclass(frozen=True)
class Named:
    """The parts of a name of a project's backend.

    `release` is like sglang==VERSION or sglang@PATH, `kind` one of the project's kinds, `gpu` whether on a GPU.
    """

    project: Project
    release: str
    kind: str
    gpu: bool = False

    def __str__(self) -> str:
        return f"{ON_HOPPER if self.gpu else ''}{self.release}:{self.kind}"

    @property
    def version(self) -> Version | None:
        """The version of a release; None for a source tree, whose own files have it."""
        beginning = self.project.released
        return Version(self.release.removeprefix(beginning)) if self.release.startswith(beginning) else None

    @property
    def tree(self) -> Path | None:
        """The path of a source tree; None for a release."""
        beginning = self.project.tree
        return Path(self.release.removeprefix(beginning)) if self.release.startswith(beginning) else None

    @classmethod
    def parse(cls, project: Project, name: str) -> Self:
        """Parse `name`. Raises BadName."""
        gpu = project.on_gpu and name.startswith(ON_HOPPER)
        release, colon, kind = (name.removeprefix(ON_HOPPER) if gpu else name).rpartition(":")
        title = project.title
        kinds = (*project.on_hopper, *project.gpu_kinds) if gpu else project.kinds
        if not colon or not release:
            raise BadName(f"{name!r} is not a backend of {title}: add {' or '.join(f':{each}' for each in kinds)}")
        if kind in project.gpu_kinds and not gpu:
            raise BadName(f"{name!r}: {kind} runs on a GPU alone, as {ON_HOPPER}{name}")
        if gpu and kind in project.kinds and kind not in kinds:
            raise BadName(f"{name!r}: on a Hopper GPU run {' and '.join(kinds)}, and {kind} on the CPU alone")
        if kind not in kinds:
            raise BadName(f"{name!r}: {kind!r} is not a backend of {title} that can be tested: {', '.join(kinds)}")
        named = cls(project, release, kind, gpu=gpu)
        if release.startswith(project.released):
            _check_version(project, name, release.removeprefix(project.released))
        elif named.tree is None or not named.tree.is_absolute():
            raise BadName(
                f"{name!r} does not say which {title}: name a release as in {project.released}{project.oldest}:{kind}, "
                f"or a source tree by {project.name}:{kind} and --{project.name} PATH"
            )
        return named


def _check_version(project: Project, name: str, text: str) -> None:
    try:
        version = Version(text)
    except ValueError:
        raise BadName(f"{name!r}: {text!r} is not a version like {project.oldest}") from None
    if str(version) != text:
        raise BadName(f"{name!r}: write that version as {version}")
    if version < project.oldest:
        raise BadName(f"{name!r}: releases can be tested from {project.oldest} on")
