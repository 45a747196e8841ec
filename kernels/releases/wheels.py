"""Released wheels: fetched by pip without their dependencies, checked by hash, unpacked into the cache.

The cache's folder of an engine has a folder for each version, and beside it the hash of its wheel, as `sha256sum`
writes it. Hashes of known versions are pinned; those of others are kept at the first fetch and must stay the same, even
after the folder was deleted.
"""

import base64
import csv
import functools
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from attnfuzz.kernels.building.library_cache import cache_folder, folder_made_once
from attnfuzz.kernels.building.pip import PipFailed, pip, released
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.project import Project


@dataclass(frozen=True)
class Wheels:
    """The wheels of a project's releases."""

    project: Project

    def released(self) -> list[Version]:
        """List all supported versions that pip can download, oldest first; no pre-releases. Raises ReleaseError."""
        try:
            versions = released(self.project.on_pypi, "--only-binary=:all:", *self.project.wheel)
        except PipFailed as error:
            raise ReleaseError(f"cannot list the versions of {self.project.title}: {error}") from error
        return [version for version in versions if version >= self.project.oldest]

    def cached(self) -> list[Version]:
        """List the versions that need no network, oldest first."""
        return sorted(Version(path.parent.name) for path in self._folder.glob(f"[!.]*/{self.project.name}"))

    def unpacked(self, version: Version, progress: Callable[[str], None] = lambda _: None) -> Path:
        """Return the folder of a version's package, fetched unless the cache has it; `progress` reports a fetch.

        Raises:
            ReleaseError: pip knows others, but not this one; no network and not in the cache, or the cache can't be
                written to; the download differs from the known content of this version.

        """
        root, title = self._folder / str(version), self.project.title

        def fetch(draft: Path) -> None:
            progress(f"Fetching {title} {version} (once).")
            with tempfile.TemporaryDirectory() as scratch:
                wheel = self._fetched(version, Path(scratch))
                self._check(wheel, version)
                unpack(self.project, wheel, draft)

        try:
            return folder_made_once(root, fetch)
        except OSError as error:
            raise ReleaseError(
                f"cannot write {title} {version} to {root.parent}: {error.strerror}; "
                "set ATTNFUZZ_CACHE to a folder with space"
            ) from error

    def edited(self, root: Path, files: Iterable[Path]) -> list[Path]:
        """List the files that differ from the wheel's, so that they are not representative of its release."""
        hashes = self._recorded(root)
        return [
            file for file in files if hashes.get(file.relative_to(root).as_posix()) != _record_hash(file.read_bytes())
        ]

    def pinned(self) -> Mapping[str, str]:
        """Return the SHA-256 of the wheels of known versions."""
        return _hashes(self.project.hashes)

    def _fetched(self, version: Version, folder: Path) -> Path:
        title = self.project.title
        requirement = f"{self.project.on_pypi}=={version}"
        options = ("--quiet", "--no-deps", "--only-binary=:all:", *self.project.wheel)
        try:
            pip("download", *options, "--dest", str(folder), requirement)
        except PipFailed as error:
            try:
                known = self.released()
            except ReleaseError:
                have = _listed(self.cached()) or "nothing"
                raise ReleaseError(
                    f"cannot fetch {requirement}, which is not in {self._folder}: {error}; "
                    f"without a network, name an available one ({have}), or --{self.project.name} PATH of a source tree"
                ) from error
            if version not in known:
                raise ReleaseError(f"there is no {title} {version}; the newest are {_listed(known[-4:])}") from error
            raise ReleaseError(f"cannot fetch {requirement}: {error}") from error
        return next(folder.glob(f"{self.project.file_name}-*.whl"))

    def _check(self, wheel: Path, version: Version) -> None:
        """Compare a wheel with the known hash of its version, and keep it. Raises ReleaseError."""
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        kept = self._folder / f"{version}.sha256"
        known = self.pinned().get(str(version)) or (kept.read_text().split()[0] if kept.is_file() else None)
        if known is not None and digest != known:
            raise ReleaseError(
                f"{wheel.name} has the hash {digest[:16]}..., and {self.project.title} {version} is known by "
                f"{known[:16]}...: do not use it, and look at where pip takes it from (python -m pip config list)"
            )
        kept.write_text(f"{digest}  {wheel.name}\n")

    def _recorded(self, root: Path) -> Mapping[str, str]:
        """Read the hash of each file from the wheel's RECORD (PEP 376: URL-safe base64 without padding)."""
        with next(root.glob(f"{self.project.file_name}-*.dist-info/RECORD")).open(newline="") as file:
            return {name: digest.removeprefix("sha256=") for name, digest, _ in csv.reader(file)}

    @property
    def _folder(self) -> Path:
        return cache_folder() / self.project.on_pypi


def unpack(project: Project, wheel: Path, root: Path) -> None:
    """Unpack the package's sources and its metadata. Raises ReleaseError if a file's name leaves the folder."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if not _is_needed(project, path):
                continue
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                raise ReleaseError(f"{wheel.name} would write {member.filename!r}, outside its folder: do not use it")
            archive.extract(member, root)


def _is_needed(project: Project, path: PurePosixPath) -> bool:
    name = path.as_posix()
    if path.parts[0].endswith(".dist-info"):
        return path.name in {"METADATA", "RECORD"}
    return (
        name.startswith(f"{project.name}/")
        and name.endswith(tuple(project.suffixes))
        and not name.startswith(project.left_out)
    )


def _listed(versions: Iterable[Version]) -> str:
    return ", ".join(map(str, versions))


@functools.cache
def _hashes(file: Path) -> Mapping[str, str]:
    hashes: dict[str, str] = json.loads(file.read_text())
    return hashes


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
