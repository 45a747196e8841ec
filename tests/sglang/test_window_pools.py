"""Pools of windows beside a full pool: releases translate slots, and a missing translation is found."""

from pathlib import Path

import pytest
from engine_cases import GEOMETRY, decode, extend, verify
from msgspec.structs import replace
from planted_tree import planted_tree

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.case import Case, KvView, Launch, PageOrder, Pages, Tombstone, Views
from attnfuzz.reference.dtypes import DType

pytestmark = pytest.mark.sglang

_EXTEND = extend((0, 5, 45), (1, 3, 3))
_DECODE = decode((0, 1, 46), (1, 1, 17))
_VERIFY = verify((0, 4, 50), (1, 4, 21))
_REPLAYED = (replace(_VERIFY, requests=(), launch=Launch.CAPTURE), replace(_VERIFY, launch=Launch.REPLAY))


def _case(backend: str) -> Case:
    """Return steps whose first pages have left the window.

    Verifies of flashinfer ignore it (issue 22679), its prefills see more (33915), and decodes of triton less (32087).
    """
    kind = backend.rpartition(":")[2]
    dtype = DType.FLOAT16 if kind == "triton" else GEOMETRY.dtype
    steps = {"flashinfer": (_DECODE,), "triton": (_EXTEND, *_REPLAYED)}
    return Case(
        backend=backend,
        geometry=replace(GEOMETRY, window_left=9, dtype=dtype, kv_dtype=dtype),
        steps=steps.get(kind, (_EXTEND, _DECODE, _VERIFY, *_REPLAYED)),
        pages=Pages(order=PageOrder.SHUFFLED, tombstone=Tombstone.NULL),
        views=Views(kv=KvView.TOKEN_MAJOR),
    )


@pytest.mark.parametrize(
    ("version", "wrong"),
    [
        # Ids of pages are translated like those of slots (layers/attention/flashattention_backend.py:1211).
        ("0.5.9", {"fa3": {Kind.OUTPUT_MISMATCH}}),
        ("0.5.23", {}),
    ],
)
def test_slots_are_those_of_the_pool_of_windows(version: str, wrong: dict[str, set[Kind]], runner: Runner) -> None:
    for kind in ("trtllm_mha", "fa3", "triton", "flashinfer"):
        verdict = runner.verdict(_case(f"sglang=={version}:{kind}"))
        assert verdict.unsupported is None
        assert {each.kind for each in verdict.failures} == wrong.get(kind, set())
        assert verdict.rows


def test_a_page_table_that_is_not_translated_is_found(tmp_path: Path, runner: Runner) -> None:
    file = Path("sglang", "srt", "layers", "attention", "trtllm_mha_backend.py")
    tree = planted_tree(
        SGLANG,
        "0.5.23",
        tmp_path,
        (file, "if is_swa:\n                return swa_pt", "if is_swa:\n                pass"),
    )
    assert runner.verdict(_case(f"{tree}:trtllm_mha")).failures
