"""Source trees of SGLang: where their source is, and which version they say."""

import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.release import Release, release_of
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.project import SGLANG


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that says no version."""
    monkeypatch.delenv("SETUPTOOLS_SCM_PRETEND_VERSION", raising=False)
    # No repository that the folder of temporary files may be in.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "checkout" / "python" / "sglang" / "srt" / "layers" / "attention").mkdir(parents=True)
    return tmp_path / "checkout"


def tree_at(path: Path) -> Release:
    """The tree in a folder, as a release."""
    return release_of(SGLANG, f"sglang@{path}")


def _say(checkout: Path, version: str) -> None:
    (checkout / "python" / "sglang" / "_version.py").write_text(f"__version__ = version = '{version}'\n")


def _git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", *author, "-C", str(folder), *arguments], check=True, capture_output=True)  # noqa: S607


@pytest.mark.slow
@pytest.mark.parametrize("named", ["checkout", "checkout/python"])
def test_a_checkout_and_its_python_folder_are_the_same_tree(checkout: Path, named: str) -> None:
    _say(checkout, "0.5.24.dev3+gabcdef")
    found = tree_at(checkout.parent / named)
    assert (found.root, found.version) == (checkout / "python", Version("0.5.24.dev3+gabcdef"))


def test_an_unpacked_wheel_says_its_version_and_its_flashinfer(checkout: Path) -> None:
    info = checkout / "python" / "sglang-0.5.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sglang\nVersion: 0.5.9\nRequires-Dist: flashinfer_python==0.6.3\n")
    release = tree_at(checkout / "python")
    assert (release.version, release.flashinfer) == (Version("0.5.9"), Version("0.6.3"))


@pytest.mark.slow
def test_tags_of_a_checkout_take_precedence_over_an_old_build(checkout: Path) -> None:
    _say(checkout, "0.5.1")
    _git(checkout, "init")
    _git(checkout, "commit", "--allow-empty", "-m", "a release")
    _git(checkout, "tag", "v0.5.23")
    assert tree_at(checkout).version == Version("0.5.23")
    _git(checkout, "commit", "--allow-empty", "-m", "work")
    assert tree_at(checkout).version == Version("0.5.23+1")
    assert tree_at(checkout).version > Version("0.5.23")


@pytest.mark.slow
def test_the_tags_of_another_repository_around_it_say_nothing(checkout: Path) -> None:
    _say(checkout, "0.5.14")
    _git(checkout.parent, "init")
    _git(checkout.parent, "commit", "--allow-empty", "-m", "another project")
    _git(checkout.parent, "tag", "v9.9")
    assert tree_at(checkout).version == Version("0.5.14")


@pytest.mark.slow
def test_the_version_of_a_tree_without_one_can_be_given(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReleaseError, match=r"does not say which version it is: git fetch --tags, or .*=0\.5\.9"):
        tree_at(checkout)
    monkeypatch.setenv("SETUPTOOLS_SCM_PRETEND_VERSION", "0.5.14")
    assert tree_at(checkout).version == Version("0.5.14")


@pytest.mark.slow
def test_a_version_that_is_none_is_reported(checkout: Path) -> None:
    _say(checkout, "newest")
    with pytest.raises(ReleaseError, match="'newest', which is none"):
        tree_at(checkout)


@pytest.mark.slow
def test_without_git_a_build_says_the_version(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _say(checkout, "0.5.11")
    monkeypatch.setenv("PATH", "")
    assert tree_at(checkout).version == Version("0.5.11")


def test_a_folder_without_the_source_is_no_tree(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="holds no source of SGLang: name a checkout"):
        tree_at(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("project", "pinned"),
    [
        ('dependencies = ["torch==2.9.1", "flashinfer_python[cu13]==0.7.2"]', Version("0.7.2")),
        ('dependencies = ["flashinfer-python>=0.6"]', None),
        ('dependencies = ["flashinfer_python==0.6.*"]', None),
        ('dependencies = ["not a requirement at all", 3]', None),
        ('name = "sglang"', None),
        ("dependencies = [", None),
    ],
)
def test_the_flashinfer_of_a_checkout_is_pinned_by_its_project(
    checkout: Path, project: str, pinned: Version | None
) -> None:
    _say(checkout, "0.5.23")
    (checkout / "python" / "pyproject.toml").write_text(f"[project]\n{project}\n")
    assert tree_at(checkout).flashinfer == pinned


@pytest.mark.parametrize(
    ("version", "origin"), [("0.5.23", "0.5.23"), ("0.5.23.dev4", "0.5.22"), ("9.0.0", "0.5.23"), ("0.1.0", None)]
)
def test_a_tree_comes_from_the_newest_release_that_is_not_after_it(
    checkout: Path, version: str, origin: str | None
) -> None:
    _say(checkout, version)
    tree = f"hopper:sglang@{checkout}:trtllm_mla"
    assert ENGINE.origin(tree) == (origin and f"hopper:sglang=={origin}:trtllm_mla")
    assert ENGINE.origin("sglang==0.5.9:trtllm_mha") is None
