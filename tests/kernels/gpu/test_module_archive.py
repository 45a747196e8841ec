"""Compiled modules in an archive, taken by another machine."""

import tarfile
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.kernels.gpu import build_record, module_archive
from attnfuzz.kernels.gpu.build_record import WORKSPACE_BASE, Built
from attnfuzz.kernels.gpu.module_archive import CONTENTS, BuiltFor, ModuleList, NoArchive, keep, take

ARCH = "9.0a"
XQA = "XQA bf16"
REFUSED = "fmha_v2 of 7"
CACHED = ".cache/flashinfer/0.7.2/90a/cached_ops/xqa/xqa.so"


def on_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Go to a machine whose caches are in `folder`."""
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(folder / "own"))
    monkeypatch.setenv(WORKSPACE_BASE, str(folder / "home"))
    return folder / "home"


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An archive of a module, of a refusal, and of a library of our own, made on one machine; this is another one."""
    home = on_machine(monkeypatch, tmp_path / "first")
    library, own = home / CACHED, cache_folder() / "attnfuzz_guards-12.so"
    for path, content in ((library, b"code"), (own, b"guards")):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    base = str(home)
    results = {
        XQA: Built(library=str(library), seconds=41.0, base=base),
        REFUSED: Built(reason="static assertion failed", lasting=True, base=base),
        "interrupted": Built(reason="the compiler was killed", base=base),
        "shipped": Built(library="/usr/lib/shipped.so", base=base),
        "of another backend": Built(library=str(library), base=base),
    }
    build_record.add(ARCH, results)
    wanted = [name for name in results if name != "of another backend"]
    assert keep(tmp_path / "modules.tar", ARCH, wanted, [own]) == 2
    on_machine(monkeypatch, tmp_path / "second")
    return tmp_path / "modules.tar"


def test_another_machine_has_the_libraries_and_refusals(archive: Path) -> None:
    home = Path(build_record.workspace_base())
    taken = take(archive, "9.0")
    assert (taken.libraries, taken.misfit) == (2, "")
    assert (home / CACHED).read_bytes() == b"code"
    assert (cache_folder() / "attnfuzz_guards-12.so").read_bytes() == b"guards"
    known = build_record.read(ARCH)
    assert set(known) == {XQA, REFUSED}
    assert known[XQA].ready
    assert known[XQA].library == str(home / CACHED)
    assert known[REFUSED].settled


def test_libraries_that_are_there_stay(archive: Path) -> None:
    take(archive, ARCH)
    library = Path(build_record.workspace_base()) / CACHED
    library.write_bytes(b"compiled here")
    assert take(archive, ARCH).libraries == 0
    assert library.read_bytes() == b"compiled here"


@pytest.mark.parametrize(("field", "value"), [("flashinfer", "0.7.1 0"), ("archs", "10.0"), ("machine", "aarch64")])
def test_an_archive_for_something_else_is_left_alone(field: str, value: str, archive: Path) -> None:
    rewrite(archive, msgspec.structs.replace(contents(archive), built_for=other(field, value)))
    assert "another FlashInfer, architecture or machine" in take(archive, ARCH).misfit
    assert not build_record.read(ARCH)


def test_no_file_is_nothing(tmp_path: Path) -> None:
    assert take(tmp_path / "none.tar", ARCH).libraries == 0


@pytest.mark.parametrize("content", [b"", b"not a tar file", bytes(10240)])
def test_another_file_is_refused_and_kept(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(NoArchive, match="is damaged or not an archive of modules"):
        take(path, ARCH)
    assert path.read_bytes() == content


def test_a_truncated_archive_is_refused(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(NoArchive, match="is damaged or"):
        take(archive, ARCH)
    assert not build_record.read(ARCH)


@pytest.mark.parametrize("library", ["../outside.so", "/outside.so", ".cache/absent.so"])
def test_no_library_leads_out_of_the_cache(library: str, archive: Path) -> None:
    found = contents(archive)
    modules = {XQA: msgspec.structs.replace(found.modules[XQA], library=library)}
    rewrite(archive, msgspec.structs.replace(found, modules=modules))
    with pytest.raises(NoArchive, match="is damaged or"):
        take(archive, ARCH)
    assert not (archive.parent / "second" / "outside.so").exists()


def test_a_changed_flashinfer_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        version = "0.7.2"

        def __init__(self, *lines: str) -> None:
            self.lines = lines

        def read_text(self, _: str) -> str:
            return "\n".join(self.lines)

    def target(*lines: str) -> BuiltFor:
        monkeypatch.setattr(module_archive, "distribution", lambda _: Installed(*lines))
        return BuiltFor.here(ARCH)

    kernels = "flashinfer/xqa.cu,sha256=abc,12"
    assert target(kernels) == target("flashinfer/__pycache__/x.pyc,,", kernels, "../bin/flashinfer,sha256=0,1")
    assert target(kernels) != target("flashinfer/xqa.cu,sha256=abd,12")


def contents(archive: Path) -> ModuleList:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(CONTENTS)
        assert file is not None
        return msgspec.json.decode(file.read(), type=ModuleList)


def rewrite(archive: Path, changed: ModuleList) -> None:
    """Put other contents in front of the files of an archive."""
    files = []
    with tarfile.open(archive) as opened:
        for member in opened:
            file = opened.extractfile(member)
            assert file is not None
            if member.name != CONTENTS:
                files.append((member, file.read()))
    encoded = msgspec.json.encode(changed)
    head = tarfile.TarInfo(CONTENTS)
    head.size = len(encoded)
    with tarfile.open(archive, "w") as written:
        for member, content in ((head, encoded), *files):
            written.addfile(member, BytesIO(content))


def other(field: str, value: str) -> BuiltFor:
    return msgspec.structs.replace(BuiltFor.here(ARCH), **{field: value})
