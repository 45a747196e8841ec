"""Pinned questions of releases."""

import json
from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.sglang import pins
from attnfuzz.kernels.sglang.pins import pinned


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.11", "0.5.14", "0.5.23"])
def test_a_release_that_must_work_asks_nothing_that_it_was_not_given(version: str) -> None:
    assert (Path(pins.__file__).parent / "pinned" / f"{version}.json").is_file()
    assert pinned(Version(version)) == {}


def test_a_version_without_pins_has_those_of_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pinned").mkdir()
    for version in ("0.5.9", "0.5.11", "0.5.10.post1"):
        (tmp_path / "pinned" / f"{version}.json").write_text(json.dumps({version: ["sglang/a.py:1"]}))
    monkeypatch.setattr(pins, "files", lambda _: tmp_path)
    found = [list(pinned(Version(text))) for text in ("0.5.8", "0.5.9", "0.5.10", "0.5.10.post2", "0.5.24.dev3")]
    assert found == [[], ["0.5.9"], ["0.5.9"], ["0.5.10.post1"], ["0.5.11"]]
