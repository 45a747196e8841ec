"""The registry of guests: those that ship, and those of installed packages."""

import sys
from pathlib import Path

import pytest

from attnfuzz.kernels.interface.guests import offered, shipped
from attnfuzz.shipped import SHIPPED


def test_every_shipped_guest_can_be_imported() -> None:
    for group, listed in SHIPPED.items():
        assert list(shipped(group)) == list(listed)
        assert all(found is not None for found in shipped(group).values())


def test_installed_packages_add_guests_and_replace_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = tmp_path / "others-1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (found / "entry_points.txt").write_text("[attnfuzz.engines]\nvllm = others:ENGINE\nother = others:ENGINE\n")
    monkeypatch.syspath_prepend(tmp_path)
    offered.cache_clear()
    values = {point.name: point.value for point in offered("attnfuzz.engines")}
    offered.cache_clear()
    assert values["other"] == "others:ENGINE"
    assert values["vllm"] == SHIPPED["attnfuzz.engines"]["vllm"]


def test_shipped_engines_need_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source tree on PYTHONPATH has none."""
    monkeypatch.setattr(sys, "path", [])
    offered.cache_clear()
    points = offered("attnfuzz.engines")
    offered.cache_clear()
    assert [point.name for point in points] == ["sglang", "vllm"]
