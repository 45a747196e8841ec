"""Released wheels of SGLang: fetched by pip without their dependencies, checked by hash, unpacked into the cache.

The cache's folder sglang/ has a folder for each version, and beside it the hash of its wheel, as `sha256sum` writes it.
Hashes of known versions are pinned in wheels.json; those of others are kept at the first fetch and must stay the same,
even after the folder was deleted.
"""

import base64
import csv
import functools
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from packaging.version import Version

from attnfuzz.kernels.library_cache import cache_folder, folder_made_once
from attnfuzz.kernels.pip import PipFailed, pip
from attnfuzz.kernels.sglang.errors import ReleaseError
from attnfuzz.kernels.sglang.naming import OLDEST

_ONE_WHEEL = ("--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_34_x86_64")
"""The wheel with the pinned hashes, used on any machine: nothing compiled in it is needed."""

_NEEDED = frozenset({".py", ".cu", ".cuh", ".h", ".hpp"})
_NOT_NEEDED = ("sglang/multimodal_gen/", "sglang/test/")


def released() -> list[Version]:
    """All versions since 0.5.9 that pip can download, oldest first; no pre-releases. Raises ReleaseError."""
    try:
        listing = pip("index", "versions", "sglang", *_ONE_WHEEL)
    except PipFailed as error:
        raise ReleaseError(f"cannot list the versions of SGLang: {error}") from error
    line = next((line for line in listing.splitlines() if line.startswith("Available versions:")), "")
    names = filter(None, map(str.strip, line.partition(":")[2].split(",")))
    return sorted(version for name in names if (version := Version(name)) >= OLDEST)


def cached() -> list[Version]:
    """The versions that need no network, oldest first."""
    return sorted(Version(path.parent.name) for path in _folder().glob("*/sglang"))


def unpacked(version: Version, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The folder that holds a version's `sglang`, fetched unless the cache has it; `progress` reports a fetch.

    Raises:
        ReleaseError: pip knows others, but not this one; no network and not in the cache, or the cache can't be written
            to; the download differs from the known content of this version.

    """
    root = _folder() / str(version)

    def fetch(draft: Path) -> None:
        progress(f"Fetching SGLang {version} (once).")
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _fetched(version, Path(scratch))
            _check(wheel, version)
            unpack(wheel, draft)

    try:
        return folder_made_once(root, fetch)
    except OSError as error:
        raise ReleaseError(
            f"cannot write SGLang {version} to {root.parent}: {error.strerror}; "
            "set ATTNFUZZ_CACHE to a folder with space"
        ) from error


def unpack(wheel: Path, root: Path) -> None:
    """Unpack the package's sources and its metadata. Raises ReleaseError if a file's name leaves the folder."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if not _is_needed(path):
                continue
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                raise ReleaseError(f"{wheel.name} would write {member.filename!r}, outside its folder: do not use it")
            archive.extract(member, root)


def edited(root: Path, files: Iterable[Path]) -> list[Path]:
    """The files that differ from the wheel's, so that they are not representative of its release."""
    hashes = _recorded(root)
    return [file for file in files if hashes.get(file.relative_to(root).as_posix()) != _record_hash(file.read_bytes())]


def _is_needed(path: PurePosixPath) -> bool:
    name = path.as_posix()
    if path.parts[0].endswith(".dist-info"):
        return path.name in {"METADATA", "RECORD"}
    return name.startswith("sglang/") and path.suffix in _NEEDED and not name.startswith(_NOT_NEEDED)


def _fetched(version: Version, folder: Path) -> Path:
    requirement = f"sglang=={version}"
    try:
        pip("download", "--quiet", "--no-deps", *_ONE_WHEEL, "--dest", str(folder), requirement)
    except PipFailed as error:
        try:
            known = released()
        except ReleaseError:
            have = _listed(cached()) or "nothing"
            raise ReleaseError(
                f"cannot fetch {requirement}, which is not in {_folder()}: {error}; "
                f"without a network, name an available one ({have}), or --sglang PATH of a source tree"
            ) from error
        if version not in known:
            raise ReleaseError(f"there is no SGLang {version}; the newest are {_listed(known[-4:])}") from error
        raise ReleaseError(f"cannot fetch {requirement}: {error}") from error
    return next(folder.glob("sglang-*.whl"))


def _listed(versions: Iterable[Version]) -> str:
    return ", ".join(map(str, versions))


def _check(wheel: Path, version: Version) -> None:
    """Compare a wheel with the known hash of its version, and keep it. Raises ReleaseError."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    kept = _folder() / f"{version}.sha256"
    known = pinned().get(str(version)) or (kept.read_text().split()[0] if kept.is_file() else None)
    if known is not None and digest != known:
        raise ReleaseError(
            f"{wheel.name} has the hash {digest[:16]}..., and SGLang {version} is known by {known[:16]}...: "
            "do not use it, and look at where pip takes it from (python -m pip config list)"
        )
    kept.write_text(f"{digest}  {wheel.name}\n")


@functools.cache
def pinned() -> Mapping[str, str]:
    """The SHA-256 of the wheels of known versions."""
    hashes: dict[str, str] = json.loads(Path(__file__).with_name("wheels.json").read_text())
    return hashes


def _recorded(root: Path) -> Mapping[str, str]:
    """The hash of each file in the wheel's RECORD (PEP 376: URL-safe base64 without padding)."""
    with next(root.glob("sglang-*.dist-info/RECORD")).open(newline="") as file:
        return {name: digest.removeprefix("sha256=") for name, digest, _ in csv.reader(file)}


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _folder() -> Path:
    return cache_folder() / "sglang"
