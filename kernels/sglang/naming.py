"""The names of backends of SGLang's releases and source trees.

sglang==0.5.9:trtllm_mha is that of a release and sglang@PATH:trtllm_mha that of a source tree, on the CPU. On a Hopper
GPU they are hopper:sglang==0.5.9:trtllm_mha and hopper:sglang@PATH:trtllm_mha.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.version import Version

from attnfuzz.kernels.engine import EngineError

OLDEST = Version("0.5.9")
"""The first supported release: the first of the reported bugs are in it."""

KINDS = ("trtllm_mha", "trtllm_mla")
"""The supported attention backends of a release, by the values of its --attention-backend."""

RELEASED = "sglang=="
TREE = "sglang@"
ON_HOPPER = "hopper:"


class BadName(EngineError):
    """A name that begins like SGLang's and names none of its backends; the message suggests a correct one."""


@dataclass(frozen=True)
class Named:
    """The parts of a name: `release` is sglang==VERSION or sglang@PATH, `kind` one of KINDS, `gpu` whether on a GPU."""

    release: str
    kind: str
    gpu: bool = False

    def __str__(self) -> str:
        return f"{ON_HOPPER if self.gpu else ''}{self.release}:{self.kind}"

    @property
    def version(self) -> Version | None:
        """The version of a release; None for a source tree, whose own files have it."""
        return Version(self.release.removeprefix(RELEASED)) if self.release.startswith(RELEASED) else None

    @property
    def tree(self) -> Path | None:
        """The path of a source tree; None for a release."""
        return Path(self.release.removeprefix(TREE)) if self.release.startswith(TREE) else None

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse `name`. Raises BadName."""
        release, colon, kind = name.removeprefix(ON_HOPPER).rpartition(":")
        if not colon or not release:
            raise BadName(f"{name!r} names no backend of SGLang: add {' or '.join(f':{each}' for each in KINDS)}")
        if kind not in KINDS:
            raise BadName(
                f"{name!r}: of SGLang's backends {' and '.join(KINDS)} can be tested, and {kind!r} is neither"
            )
        named = cls(release, kind, gpu=name.startswith(ON_HOPPER))
        if release.startswith(RELEASED):
            _check_version(name, release.removeprefix(RELEASED))
        elif named.tree is None or not named.tree.is_absolute():
            raise BadName(
                f"{name!r} does not say which SGLang: name a release as in sglang=={OLDEST}:{kind}, "
                f"or a source tree by sglang:{kind} and --sglang PATH"
            )
        return named


def _check_version(name: str, text: str) -> None:
    try:
        version = Version(text)
    except ValueError:
        raise BadName(f"{name!r}: {text!r} is no version, as 0.5.9 is one") from None
    if str(version) != text:
        raise BadName(f"{name!r}: write that version as {version}")
    if version < OLDEST:
        raise BadName(f"{name!r}: releases can be tested from {OLDEST} on")
