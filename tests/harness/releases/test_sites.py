"""Sites: what their metadata must say, and how pip installs them, from a folder of wheels."""

from pathlib import Path

import pytest
from fake_releases import make_site, make_wheel, needs_pip, pip_has_only, replace_pip
from packaging.version import Version

from attnfuzz.harness.releases.sites import CannotBeHad, SiteError, installed, site_at, site_folder

PACKAGE = "flashinfer-python"
VERSION = Version("0.6.8")


def test_a_site_is_known_by_its_metadata(tmp_path: Path) -> None:
    site = site_at(make_site(tmp_path, "0.6.8"), PACKAGE, VERSION)
    assert (site.version, site.folder, site.modules) == (VERSION, tmp_path, ("flashinfer",))


def test_modules_are_taken_from_the_list_of_files_where_nothing_names_them(tmp_path: Path) -> None:
    make_site(tmp_path, "0.6.8")
    info = tmp_path / "flashinfer_python-0.6.8.dist-info"
    (info / "top_level.txt").unlink()
    (info / "RECORD").write_text(
        "flashinfer/__init__.py,,\nflashinfer_python-0.6.8.dist-info/METADATA,,\n__pycache__/x.pyc,,\n../bin/tool,,\n"
    )
    assert site_at(tmp_path, PACKAGE, VERSION).modules == ("flashinfer",)


def test_a_version_built_for_a_cuda_version_is_that_version(tmp_path: Path) -> None:
    assert site_at(make_site(tmp_path, "0.6.8+cu128"), PACKAGE, VERSION).version == VERSION


@pytest.mark.parametrize("asked", ["0.6.9", "0.6.8.post1", "0.6.8+cu130"])
def test_another_version_is_refused(tmp_path: Path, asked: str) -> None:
    make_site(tmp_path, "0.6.8")
    with pytest.raises(SiteError, match=r"has flashinfer-python 0\.6\.8, not "):
        site_at(tmp_path, PACKAGE, Version(asked))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="is not a folder"):
        site_at(tmp_path / "absent", PACKAGE, VERSION)


def test_a_folder_without_the_package_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"has no flashinfer-python: pip install --no-deps --target .*==0\.6\.8"):
        site_at(tmp_path, PACKAGE, VERSION)


def test_a_folder_with_the_metadata_of_two_versions_is_refused(tmp_path: Path) -> None:
    make_site(make_site(tmp_path, "0.6.8"), "0.6.9")
    with pytest.raises(SiteError, match="several versions"):
        site_at(tmp_path, PACKAGE, VERSION)


def test_metadata_without_the_modules_is_refused(tmp_path: Path) -> None:
    make_site(tmp_path, "0.6.8")
    (tmp_path / "flashinfer").rename(tmp_path / "gone")
    with pytest.raises(SiteError, match="none of its modules"):
        site_at(tmp_path, PACKAGE, VERSION)


@pytest.mark.parametrize("metadata", ["Name: flashinfer-python\n", "Name: flashinfer-python\nVersion: new\n"])
def test_metadata_without_a_version_is_refused(tmp_path: Path, metadata: str) -> None:
    make_site(tmp_path, "0.6.8")
    (tmp_path / "flashinfer_python-0.6.8.dist-info" / "METADATA").write_text(metadata)
    with pytest.raises(SiteError, match="names no version"):
        site_at(tmp_path, PACKAGE, VERSION)


def _silent(_: str) -> None:
    """Progress that nobody looks at."""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes all from."""
    return pip_has_only(tmp_path / "wheels", monkeypatch)


@pytest.mark.slow
@needs_pip
def test_a_version_is_installed_once(tmp_path: Path, wheels: Path) -> None:
    wheel = make_wheel(wheels, "0.6.8")
    make_wheel(wheels, "0.6.9")
    sent: list[str] = []
    site = installed(PACKAGE, VERSION, tmp_path / "cache", sent.append)
    assert site.folder == site_folder(tmp_path / "cache", PACKAGE, VERSION)
    assert "0.6.8" in (site.folder / "flashinfer" / "__init__.py").read_text()
    wheel.unlink()
    assert installed(PACKAGE, VERSION, tmp_path / "cache", sent.append) == site
    assert sent == ["Installing flashinfer-python 0.6.8 (once)."]


def test_an_interrupted_install_is_not_taken_for_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str, target: Path) -> None:
        (target / "flashinfer").mkdir(parents=True)
        (target / "flashinfer" / "half.py").touch()
        raise KeyboardInterrupt

    make_wheel(tmp_path, "0.6.8")
    replace_pip(tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr("attnfuzz.harness.releases.sites._pip_install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            installed(PACKAGE, VERSION, tmp_path, _silent)
    assert not site_folder(tmp_path, PACKAGE, VERSION).exists()
    site = installed(PACKAGE, VERSION, tmp_path, _silent)
    assert [path.name for path in (site.folder / "flashinfer").glob("*.py")] == ["__init__.py"]


@pytest.mark.slow
@needs_pip
def test_an_unavailable_version_is_reported_in_one_line(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, "0.6.9")
    with pytest.raises(CannotBeHad) as refused:
        installed(PACKAGE, VERSION, tmp_path, _silent)
    assert str(refused.value) == "No matching distribution found for flashinfer-python==0.6.8"
    assert not site_folder(tmp_path, PACKAGE, VERSION).exists()


@pytest.mark.slow
@needs_pip
def test_a_wheel_that_is_none_is_the_reason_in_a_line(tmp_path: Path, wheels: Path) -> None:
    (wheels / "flashinfer_python-0.6.8-py3-none-any.whl").write_bytes(b"<html>")
    with pytest.raises(CannotBeHad) as refused:
        installed(PACKAGE, VERSION, tmp_path, _silent)
    assert len(str(refused.value).splitlines()) == 1
    assert "flashinfer_python-0.6.8-py3-none-any.whl" in str(refused.value)


def test_without_pip_the_error_states_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.kernels.building.pip.has_pip", lambda: False)
    with pytest.raises(CannotBeHad, match="no pip: python -m ensurepip, or name its folder with --site"):
        installed(PACKAGE, VERSION, tmp_path, _silent)
