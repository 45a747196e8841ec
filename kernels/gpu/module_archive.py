"""Compiled modules in one file, which another machine can take instead of compiling.

A tar file: CONTENTS, then the libraries. It fits where the same files of FlashInfer are installed, for the same
architectures and kind of processor. Libraries are code: an archive is to be trusted like a package.
"""

import hashlib
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.build_record import Built
from attnfuzz.reference.user_error import UserError

CONTENTS = "attnfuzz-modules.json"

_MODULES = "modules"
_OWN = "own"


class NoArchive(UserError):
    """A file can't be read or written as an archive of modules."""


class BuiltFor(msgspec.Struct, frozen=True):
    """The conditions for a compiled module to be the right one: equal ones may share an archive."""

    flashinfer: str
    archs: str
    machine: str

    @classmethod
    def here(cls, archs: str) -> "BuiltFor":
        """Describe the modules of this environment, for architectures such as "9.0a"."""
        return cls(
            flashinfer=_content_of("flashinfer-python"),
            archs=" ".join(build_record.capabilities(archs)),
            machine=platform.machine(),
        )


class ModuleList(msgspec.Struct, frozen=True):
    """The results of building `modules`, with libraries as paths within FlashInfer's cache, and files of our own."""

    built_for: BuiltFor
    modules: dict[str, Built]
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class Taken:
    """The result of unpacking: the number of libraries that were missing here, or the reason that none fits.

    `names` are those of all modules in the archive.
    """

    libraries: int = 0
    names: tuple[str, ...] = ()
    misfit: str = ""


def take(path: Path, archs: str) -> Taken:
    """Unpack the libraries in the archive at `path`, if there is one, that are missing here, and record them.

    Raises NoArchive if the file is something else, or damaged.
    """
    if not path.exists():
        return Taken()
    try:
        with tarfile.open(path) as archive:
            contents = _contents(archive)
            if contents.built_for != BuiltFor.here(archs):
                return Taken(misfit=f"{path} was made for another FlashInfer, architecture or machine")
            return _unpack(archive, contents, archs)
    except (tarfile.TarError, KeyError, EOFError, msgspec.DecodeError) as error:
        raise NoArchive(f"{path} is damaged or not an archive of modules: name another file, or delete it") from error
    except OSError as error:
        raise NoArchive(f"cannot unpack {path}: {error.strerror}") from error


def keep(path: Path, archs: str, wanted: Collection[str], own: Iterable[Path]) -> int:
    """Write the recorded modules of these names, and libraries of our own, to `path`. Return the number of libraries.

    An archive that holds just these stays as it is. Raises NoArchive if the file can't be written.
    """
    base = Path(build_record.workspace_base())
    known = build_record.read(archs)
    files: dict[str, Path] = {}
    modules: dict[str, Built] = {}
    for name, built in known.items():
        library = Path(built.library or base)
        # Libraries elsewhere came with a package.
        if name not in wanted or not built.settled or not library.is_relative_to(base):
            continue
        inside = library.relative_to(base).as_posix() if built.library else ""
        if inside:
            files[f"{_MODULES}/{inside}"] = library
        modules[name] = replace(built, library=inside, base="")
    libraries = tuple(own)
    files |= {f"{_OWN}/{each.name}": each for each in libraries}
    contents = ModuleList(BuiltFor.here(archs), modules, tuple(each.name for each in libraries))
    try:
        if not _holds(path, contents):
            _write(path, contents, files)
    except OSError as error:
        raise NoArchive(f"cannot write {path}: {error.strerror}") from error
    return len(files)


def _holds(path: Path, contents: ModuleList) -> bool:
    """Return whether the archive at `path` has these contents, so that its hash can stay as it is."""
    if not path.exists():
        return False
    with tarfile.open(path) as archive:
        return _contents(archive) == contents


def _write(path: Path, contents: ModuleList, files: Mapping[str, Path]) -> None:
    """Write an archive. It appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(contents), indent=1)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            with tarfile.open(fileobj=file, mode="w") as archive:
                head = tarfile.TarInfo(CONTENTS)
                head.size = len(encoded)
                archive.addfile(head, BytesIO(encoded))
                for name, library in files.items():
                    archive.add(library, arcname=name)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _contents(archive: tarfile.TarFile) -> ModuleList:
    first = archive.next()
    if first is None or first.name != CONTENTS or not first.isreg():
        raise KeyError(CONTENTS)
    file = archive.extractfile(first)
    assert file is not None
    return msgspec.json.decode(file.read(), type=ModuleList)


def _unpack(archive: tarfile.TarFile, contents: ModuleList, archs: str) -> Taken:
    base = build_record.workspace_base()
    known = build_record.read(archs)
    found: dict[str, Built] = {}
    unpacked = 0
    for name, built in contents.modules.items():
        if name in known and known[name].settled:
            continue
        library = ""
        if built.library:
            target = Path(base) / _inside(built.library)
            unpacked += _extracted(archive, f"{_MODULES}/{built.library}", target)
            library = str(target)
        found[name] = replace(built, library=library, base=base)
    for name in contents.own:
        unpacked += _extracted(archive, f"{_OWN}/{name}", cache_folder() / _inside(name))
    if found:
        build_record.add(archs, found)
    return Taken(unpacked, tuple(contents.modules))


def _inside(name: str) -> PurePosixPath:
    """Parse a relative path that does not lead out of its folder. Raises KeyError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise KeyError(name)
    return path


def _extracted(archive: tarfile.TarFile, name: str, target: Path) -> bool:
    """Extract a file, complete or not at all, unless it is there. Raises KeyError if the archive lacks it."""
    if target.exists():
        return False
    member = archive.getmember(name)
    file = archive.extractfile(member) if member.isreg() else None
    if file is None:
        raise KeyError(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as copy:
        shutil.copyfileobj(file, copy)
    Path(copy.name).replace(target)
    return True


def _content_of(package: str) -> str:
    """Return the version of a package, and a hash of its installed files as its RECORD lists them."""
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return "not installed"
    lines = (installed.read_text("RECORD") or "").splitlines()
    files = "\n".join(sorted(line for line in lines if line.startswith("flashinfer/") and ",sha256=" in line))
    return f"{installed.version} {hashlib.sha256(files.encode()).hexdigest()[:16]}"
