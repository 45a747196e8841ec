"""The lines that orders were read from, in the releases themselves."""

import re

import pytest
from packaging.version import Version

from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.orders import SourceLines, lines
from attnfuzz.kernels.sglang.project import SGLANG

pytestmark = pytest.mark.sglang

READ = ("0.5.9", "0.5.10", "0.5.11", "0.5.14", "0.5.23")
"""The versions that the other tests run; all 19 take long to fetch."""


def line_of(version: str, source: str) -> str:
    name, _, number = source.rpartition(":")
    file = release_of(SGLANG, f"sglang=={version}").root / "sglang" / "srt" / name
    return file.read_text(encoding="utf-8").splitlines()[int(number) - 1]


@pytest.mark.parametrize("version", READ)
def test_each_source_line_makes_the_call_of_its_order(version: str) -> None:
    at = lines()[Version(version)]
    for field in SourceLines.__struct_fields__:
        source = getattr(at, field)
        if source is None:
            continue
        call = r"prepare_mlp_sync_batch\(" if field == "pad" else r"init_forward_metadata(_\w+)?\("
        assert re.search(call, line_of(version, source)), (field, source)
