"""`attnfuzz ledger rewrite`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

OLD = b'[[known]]\r\nbackend = "torch_sdpa"\r\nfeatures = ["empty kv", "sinks"]\r\nreason = "r"\r\n'
NEW = OLD.replace(b"empty kv", b"empty KV")


def test_the_command_rewrites_a_file_with_its_line_ends(attnfuzz: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_bytes(OLD)
    assert attnfuzz("ledger", "rewrite", str(path)).err.strip() == f"Rewrote 1 line of {path}."
    assert path.read_bytes() == NEW
    assert "as reports do" in attnfuzz("ledger", "rewrite", str(path)).err


def test_a_ledger_that_cannot_be_used_is_not_rewritten(attnfuzz: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text('[[known]]\nfeatures = ["empty kv"]\n')
    assert attnfuzz("ledger", "rewrite", str(path)).code == 2
    assert "empty kv" in path.read_text()
