"""How backends of SGLang's releases and source trees are called.

sglang==0.5.9:trtllm_mha is that of a release and sglang@PATH:trtllm_mha that of a source tree, on the CPU. On a Hopper
GPU they are hopper:sglang==0.5.9:trtllm_mha and hopper:sglang@PATH:trtllm_mha.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.version import Version

from attnfuzz.kernels.engine import EngineError

OLDEST = Version("0.5.9")
"""The first release that is driven: the first of the reported bugs are in it."""

KINDS = ("trtllm_mha", "trtllm_mla")
"""The attention backends of a release that are driven, by the names that its --attention-backend takes."""

_RELEASED = "sglang=="
_TREE = "sglang@"
_SOME_TREE = "sglang:"

_ON_HOPPER = "hopper:"


class BadName(EngineError):
    """A name that begins as SGLang's do and means none of its backends; the message says what to write instead."""


@dataclass(frozen=True)
class Named:
    """What a name says: `release` is sglang==VERSION or sglang@PATH, `kind` one of KINDS, `gpu` whether on a GPU."""

    release: str
    kind: str
    gpu: bool = False

    def __str__(self) -> str:
        return f"{_ON_HOPPER if self.gpu else ''}{self.release}:{self.kind}"

    @property
    def version(self) -> Version | None:
        """Which release it is; None for a source tree, whose own files say it."""
        return Version(self.release.removeprefix(_RELEASED)) if self.release.startswith(_RELEASED) else None

    @property
    def tree(self) -> Path | None:
        """Where the source tree is; None for a release."""
        return Path(self.release.removeprefix(_TREE)) if self.release.startswith(_TREE) else None

    @classmethod
    def parse(cls, name: str) -> Self:
        """What `name` says. Raises BadName."""
        release, colon, kind = name.removeprefix(_ON_HOPPER).rpartition(":")
        if not colon or not release:
            raise BadName(f"{name!r} names no backend of SGLang: add {' or '.join(f':{each}' for each in KINDS)}")
        if kind not in KINDS:
            raise BadName(
                f"{name!r}: of SGLang's backends {' and '.join(KINDS)} can be tested, and {kind!r} is neither"
            )
        named = cls(release, kind, gpu=name.startswith(_ON_HOPPER))
        if release.startswith(_RELEASED):
            _check_version(name, release.removeprefix(_RELEASED))
        elif named.tree is None or not named.tree.is_absolute():
            raise BadName(
                f"{name!r} does not say which SGLang: name a release as in sglang=={OLDEST}:{kind}, "
                f"or a source tree by sglang:{kind} and --sglang PATH"
            )
        return named


def is_sglang(name: str) -> bool:
    """Whether a backend's name is one of SGLang's, right or wrong."""
    rest = name.removeprefix(_ON_HOPPER)
    return rest == "sglang" or rest.startswith((_RELEASED, _TREE, _SOME_TREE))


def of_tree(tree: Path, named: Sequence[str]) -> tuple[str, ...]:
    """The backends of these names, with sglang:KIND as the source tree has it; all that it has if none is named.

    Raises BadName if none of those named is sglang:KIND.
    """
    if named and not any(map(_in_some_tree, named)):
        raise BadName(f"a source tree says where {_SOME_TREE}{KINDS[0]} is, and none is asked for: leave the tree out")
    names = named or [f"{_SOME_TREE}{kind}" for kind in KINDS]
    return tuple(in_tree(name, tree) if _in_some_tree(name) else name for name in names)


def in_tree(name: str, tree: Path) -> str:
    """The backend of SGLang called `name`, as a source tree has it. Raises BadName for a backend that is not SGLang's.

    The path becomes absolute, so that the name means the same wherever a case of it is replayed.
    """
    kind = name.rpartition(":")[2]
    if not is_sglang(name):
        raise BadName(f"{name!r} is no backend of SGLang, which a source tree is of: give {_SOME_TREE}{KINDS[0]}")
    where = _ON_HOPPER if name.startswith(_ON_HOPPER) else ""
    return str(Named.parse(f"{where}{_TREE}{tree.resolve()}:{kind}"))


def _in_some_tree(name: str) -> bool:
    return name.removeprefix(_ON_HOPPER).startswith(_SOME_TREE)


def _check_version(name: str, text: str) -> None:
    try:
        version = Version(text)
    except ValueError:
        raise BadName(f"{name!r}: {text!r} is no version, as 0.5.9 is one") from None
    if str(version) != text:
        raise BadName(f"{name!r}: write that version as {version}")
    if version < OLDEST:
        raise BadName(f"{name!r}: releases can be tested from {OLDEST} on")
