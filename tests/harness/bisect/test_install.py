"""Installing releases with pip, from a folder of wheels."""

from pathlib import Path

import pytest
from fake_releases import make_wheel, needs_pip, pip_has_only
from packaging.version import Version

from attnfuzz.harness.bisect.install import CannotBeHad, installed, site_folder

PACKAGE = "flashinfer-python"
VERSION = Version("0.6.8")


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
    told: list[str] = []
    site = installed(PACKAGE, VERSION, tmp_path / "cache", told.append)
    assert site.folder == site_folder(tmp_path / "cache", PACKAGE, VERSION)
    assert "0.6.8" in (site.folder / "flashinfer" / "__init__.py").read_text()
    wheel.unlink()
    assert installed(PACKAGE, VERSION, tmp_path / "cache", told.append) == site
    assert told == ["Installing flashinfer-python 0.6.8 (once)."]


@pytest.mark.slow
@needs_pip
def test_an_interrupted_install_is_not_taken_for_a_whole_one(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str, target: Path) -> None:
        (target / "flashinfer").mkdir(parents=True)
        (target / "flashinfer" / "half.py").touch()
        raise KeyboardInterrupt

    make_wheel(wheels, "0.6.8")
    with monkeypatch.context() as patched:
        patched.setattr("attnfuzz.harness.bisect.install._pip_install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            installed(PACKAGE, VERSION, tmp_path, _silent)
    assert not site_folder(tmp_path, PACKAGE, VERSION).exists()
    site = installed(PACKAGE, VERSION, tmp_path, _silent)
    assert [path.name for path in (site.folder / "flashinfer").glob("*.py")] == ["__init__.py"]


@pytest.mark.slow
@needs_pip
def test_a_version_that_nobody_has_is_the_reason_in_a_line(tmp_path: Path, wheels: Path) -> None:
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


def test_without_pip_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CannotBeHad, match="no pip: python -m ensurepip, or name its folder with --site"):
        installed(PACKAGE, VERSION, tmp_path, _silent)
