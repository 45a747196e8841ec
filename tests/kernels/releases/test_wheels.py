"""Released wheels: fetched once, checked by hash, unpacked as far as they are needed."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from fake_releases import needs_pip, pip_has_only, replace_pip
from fake_wheels import SOURCES, make_wheel
from packaging.version import Version

from attnfuzz.kernels.building import library_cache
from attnfuzz.kernels.releases import wheels as module
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.sglang.project import SGLANG

WHEELS = Wheels(SGLANG)
NEW = Version("0.5.99")
"""A version whose hash nobody has pinned."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache: the folder that versions are kept in."""
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sglang"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that all wheels are taken from, by a stand-in for pip."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    replace_pip(folder, monkeypatch)
    return folder


@pytest.fixture
def by_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes all from."""
    return pip_has_only(tmp_path / "wheels", monkeypatch)


@pytest.mark.slow
@needs_pip
def test_a_release_is_fetched_once_and_needs_no_network_then(cache: Path, by_pip: Path) -> None:
    file = make_wheel(by_pip, str(NEW), pins="flashinfer_python[cu13]==0.7.2")
    sent: list[str] = []
    release = release_of(SGLANG, "sglang==0.5.99", sent.append)
    assert (release.root, release.version, release.flashinfer) == (cache / "0.5.99", NEW, Version("0.7.2"))
    file.unlink()
    assert release_of(SGLANG, "sglang==0.5.99", sent.append) == release
    assert sent == ["Fetching SGLang 0.5.99 (once)."]
    assert WHEELS.cached() == [NEW]


def test_wheels_may_have_another_name_than_their_package(cache: Path, wheels: Path) -> None:
    make_wheel(wheels, str(NEW), pins="flashinfer_python==0.7.2", distribution="sglang-cpu")
    project = dataclasses.replace(SGLANG, distribution="sglang-cpu")
    release = release_of(project, "sglang==0.5.99")
    assert (release.root, release.flashinfer) == (cache.with_name("sglang-cpu") / "0.5.99", Version("0.7.2"))
    assert Wheels(project).cached() == [NEW]
    assert release_of(project, f"sglang@{release.root}").version == NEW
    init = release.root / "sglang" / "__init__.py"
    assert Wheels(project).edited(release.root, [init]) == []


@pytest.mark.usefixtures("cache")
def test_a_release_in_a_cache_that_cannot_be_written_is_used(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(_: Path) -> None:
        raise PermissionError

    make_wheel(wheels, str(NEW))
    root = WHEELS.unpacked(NEW)
    monkeypatch.setattr(library_cache, "locked", read_only)
    assert WHEELS.unpacked(NEW) == root


def test_only_the_sources_of_the_package_and_its_metadata_are_unpacked(cache: Path, wheels: Path) -> None:
    make_wheel(wheels, str(NEW))
    root = WHEELS.unpacked(NEW)
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()) == [
        "sglang-0.5.99.dist-info/METADATA",
        "sglang-0.5.99.dist-info/RECORD",
        "sglang/__init__.py",
        "sglang/srt/layers/attention/trtllm_mha_backend.py",
        "sglang/srt/layers/attention/trtllm_mla_backend.py",
    ]
    assert sorted(path.name for path in cache.iterdir()) == ["0.5.99", "0.5.99.lock", "0.5.99.sha256"]


@pytest.mark.usefixtures("cache")
def test_a_known_version_with_another_hash_is_refused(wheels: Path) -> None:
    make_wheel(wheels, "0.5.9")
    with pytest.raises(ReleaseError, match=r"sglang-0\.5\.9-py3-none-any\.whl .* do not use it") as refused:
        WHEELS.unpacked(Version("0.5.9"))
    assert len(str(refused.value).splitlines()) == 1
    assert WHEELS.cached() == []


def test_a_version_that_became_another_since_its_first_fetch_is_refused(cache: Path, wheels: Path) -> None:
    make_wheel(wheels, str(NEW))
    shutil.rmtree(WHEELS.unpacked(NEW))
    make_wheel(wheels, str(NEW), {**SOURCES, "sglang/more.py": ""})
    with pytest.raises(ReleaseError):
        WHEELS.unpacked(NEW)
    assert not (cache / "0.5.99").exists()


@pytest.mark.parametrize("name", ["sglang/../../outside.py", "sglang/..\\outside.py"])
def test_a_wheel_that_would_write_outside_of_its_folder_is_refused(cache: Path, wheels: Path, name: str) -> None:
    make_wheel(wheels, str(NEW), {**SOURCES, name: ""})
    with pytest.raises(ReleaseError, match="outside its folder: do not use it"):
        WHEELS.unpacked(NEW)
    assert not list(cache.parent.rglob("*outside.py"))


def test_an_interrupted_fetch_is_not_taken_for_a_whole_one(
    cache: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object, __: Path, root: Path) -> None:
        (root / "sglang").mkdir(parents=True)
        assert WHEELS.cached() == []
        raise KeyboardInterrupt

    make_wheel(wheels, str(NEW))
    with monkeypatch.context() as patched:
        patched.setattr(module, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            WHEELS.unpacked(NEW)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert (WHEELS.unpacked(NEW) / "sglang" / "__init__.py").exists()


@pytest.mark.slow
@needs_pip
@pytest.mark.usefixtures("cache")
def test_a_version_that_was_never_released_is_reported_with_the_newest_ones(by_pip: Path) -> None:
    for version in ("0.5.20", "0.5.21", "0.5.22", "0.5.23", "0.5.24rc1"):
        make_wheel(by_pip, version)
    with pytest.raises(ReleaseError) as refused:
        WHEELS.unpacked(NEW)
    assert str(refused.value) == "there is no SGLang 0.5.99; the newest are 0.5.20, 0.5.21, 0.5.22, 0.5.23"


@pytest.mark.usefixtures("cache")
def test_without_a_network_the_cached_versions_are_listed(wheels: Path) -> None:
    file = make_wheel(wheels, str(NEW))
    WHEELS.unpacked(NEW)
    file.unlink()
    with pytest.raises(
        ReleaseError, match=r"without a network, name an available one \(0\.5\.99\), or --sglang"
    ) as refused:
        WHEELS.unpacked(Version("0.5.98"))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.usefixtures("cache")
def test_released_versions_are_those_that_can_be_driven_the_oldest_first(wheels: Path) -> None:
    for version in ("0.5.8", "0.5.10.post1", "0.5.9", "0.5.10", "0.5.11rc1"):
        make_wheel(wheels, version)
    assert [str(version) for version in WHEELS.released()] == ["0.5.9", "0.5.10", "0.5.10.post1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_says_which_variable_to_set(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o500)
    with pytest.raises(ReleaseError, match="set ATTNFUZZ_CACHE"):
        WHEELS.unpacked(NEW)


def test_a_cache_that_is_a_file_says_which_variable_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "file"))
    with pytest.raises(ReleaseError, match="set ATTNFUZZ_CACHE"):
        WHEELS.unpacked(NEW)


@pytest.mark.usefixtures("cache")
def test_a_file_that_was_edited_or_added_after_the_fetch_is_seen(wheels: Path) -> None:
    make_wheel(wheels, str(NEW))
    root = WHEELS.unpacked(NEW)
    files = [root / name for name in SOURCES if name.endswith("_backend.py")]
    assert WHEELS.edited(root, files) == []
    files[0].write_text("class TRTLLMHAAttnBackend: broken = True\n")
    added = root / "sglang" / "added.py"
    added.touch()
    assert WHEELS.edited(root, [*files, added]) == [files[0], added]


def test_the_hashes_that_are_pinned_are_of_versions_that_can_be_driven() -> None:
    assert min(map(Version, WHEELS.pinned())) == SGLANG.oldest
    assert all(len(bytes.fromhex(digest)) == 32 for digest in WHEELS.pinned().values())
