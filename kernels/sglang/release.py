"""A release of SGLang on the disk: which version, where its `sglang` folder lies, which FlashInfer it asks for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from attnfuzz.kernels.sglang import pins, tree, wheel
from attnfuzz.kernels.sglang.errors import NoSuchRelease


@dataclass(frozen=True)
class Release:
    """What can be loaded.

    Attributes:
        name: As a backend's name begins with it, `sglang==0.5.9` or `sglang@/path/of/a/tree`.
        version: Of a tree, the version that it is on the way to, such as 0.5.24.dev3.
        root: The folder that holds the package's folder `sglang`.
        flashinfer: The version of FlashInfer that it pins; None if it takes any.

    """

    name: str
    version: Version
    root: Path
    flashinfer: Version | None


def release_of(name: str, progress: Callable[[str], None] = lambda _: None) -> Release:
    """The release called `sglang==VERSION`, fetched unless it is in the cache, or `sglang@PATH`. Raises ReleaseError.

    `progress` is told of a fetch, which takes seconds.
    """
    if name.startswith("sglang=="):
        version = wheel.version_of(name.removeprefix("sglang=="))
        root = wheel.unpacked(version, progress)
        return Release(name, version, root, pins.flashinfer_of_wheel(root))
    if name.startswith("sglang@"):
        source = tree.at(Path(name.removeprefix("sglang@")))
        return Release(name, source.version, source.root, source.flashinfer)
    raise NoSuchRelease(f"{name} names no release of SGLang: sglang==0.5.9, or sglang@PATH for a source tree")
