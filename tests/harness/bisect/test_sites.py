"""Sites: what their metadata must say."""

from pathlib import Path

import pytest
from fake_releases import make_site
from packaging.version import Version

from attnfuzz.harness.bisect.sites import SiteError, site_at

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
    with pytest.raises(SiteError, match="is no folder"):
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
