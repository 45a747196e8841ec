"""Which releases a user's words mean."""

import pytest
from packaging.version import Version

from attnfuzz.harness.releases.versions import NoSuchVersions, versions_in

RELEASED = [Version(text) for text in ("0.5.9", "0.5.10rc1", "0.5.10.post1", "0.5.11", "0.5.14", "0.6.0rc1")]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0.5.11", "0.5.11"),
        ("latest", "0.5.14"),
        ("0.5.9..0.5.11", "0.5.9 0.5.10.post1 0.5.11"),
        ("0.5.10..0.5.12", "0.5.10.post1 0.5.11"),
        ("0.5.11..latest", "0.5.11 0.5.14"),
        ("0.5.14, 0.5.9", "0.5.9 0.5.14"),
        ("0.5.9..0.5.10.post1,0.5.10.post1,latest", "0.5.9 0.5.10.post1 0.5.14"),
        ("0.5.10rc1..0.5.11", "0.5.10rc1 0.5.10.post1 0.5.11"),
    ],
)
def test_versions_come_once_and_the_oldest_first(text: str, meant: str) -> None:
    assert list(map(str, versions_in(text, lambda: RELEASED))) == meant.split()


def test_versions_named_one_by_one_need_no_network() -> None:
    def unreachable() -> list[Version]:
        raise AssertionError("no network")

    assert versions_in("0.5.99,0.5.9", unreachable) == [Version("0.5.9"), Version("0.5.99")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a version: write 0.5.9, 0.5.9..latest or 0.5.9,0.5.11"),
        ("0.5.9..", "'' is not a version"),
        ("..0.5.9", "'' is not a version"),
        ("latest..0.5.9", "'latest' is not a version"),
        ("newest", "'newest' is not a version"),
        ("0.5.9,", "'' is not a version"),
        ("0.5.14..0.5.9", "no version is in 0.5.14..0.5.9: there are 0.5.9 to 0.6.0rc1; the older end comes first"),
        ("0.7..0.8", "no version is in 0.7..0.8"),
    ],
)
def test_an_invalid_version_is_refused(text: str, words: str) -> None:
    with pytest.raises(NoSuchVersions, match=words):
        versions_in(text, lambda: RELEASED)


@pytest.mark.parametrize("text", ["latest", "0.5.9..latest"])
def test_where_nothing_is_released_there_is_no_latest(text: str) -> None:
    with pytest.raises(NoSuchVersions, match="no version is released: name those that you have"):
        versions_in(text, list)
