"""Stands for a user's backend: the example of the documentation for small decodes, right or wrong."""

from pathlib import Path

_EXAMPLE = Path(__file__).parents[2] / "docs/examples/my_backend.py"
_RIGHT = "weights, v)"
_WRONG = 'weights, v) * (float("nan") if kv_len > 4 else 1)'
_DECODE_ALONE = """
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

MINE = FunctionBackend(
    attend,
    capability=Capability(
        modes=(Mode.DECODE,), dtypes=(DType.FLOAT32,), layouts=(KvLayout.NHD,), page_sizes=(8,), max_head_dim=8
    ),
)
"""
NAME = "team_backend.py:MINE"


def write_backend(folder: Path, *, wrong: bool) -> None:
    """Make the backend NAME in `folder`; it may be wrong for over 4 keys."""
    source = _EXAMPLE.read_text() + _DECODE_ALONE
    assert source.count(_RIGHT) == 1
    (folder / "team_backend.py").write_text(source.replace(_RIGHT, _WRONG) if wrong else source)
