"""What a campaign says it ran on."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnfuzz.harness.findings.environment import environment


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_it_names_versions_and_the_machine() -> None:
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["attnfuzz"].startswith("0.")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"platform", "cpu", "hypothesis"} <= found.keys()
    assert all(found.values())


def test_gpus_are_counted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, "nvidia-smi", 'printf "580.1, NVIDIA B200\\n580.1, NVIDIA B200\\n580.1, NVIDIA H200, 141GB\\n"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = environment()
    assert found["driver"] == "580.1"
    assert found["gpu"] == "2 x NVIDIA B200, 1 x NVIDIA H200, 141GB"


def test_absent_or_broken_tools_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, "nvidia-smi", "echo no driver; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = environment()
    assert not {"driver", "gpu", "compiler"} & found.keys()
    assert "torch" in found


@pytest.mark.slow
def test_flashinfer_is_not_imported(tmp_path: Path) -> None:
    """In a process of its own, since this one may have imported it for other tests."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from attnfuzz.harness.findings.environment import environment; environment();"
        "assert 'flashinfer' not in sys.modules"
    )
    subprocess.run([sys.executable, script], check=True)
