"""Backends of releases on a small batch of each of their modes."""

from typing import Any

import pytest
from engine_cases import GEOMETRY
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.case import Case, KvView, Launch, Mask, Mode, Request, Step, Views
from attnfuzz.reference.dtypes import DType

pytestmark = pytest.mark.sglang

_DECODE = Step(mode=Mode.DECODE, requests=(Request(0, 1, 40), Request(1, 1, 7)), padded_tokens=2, tokens_per_request=1)
_EXTEND = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 45), Request(1, 3, 3)), padded_tokens=8)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
@pytest.mark.parametrize("kind", ["torch_native", "triton", "fa3", "flashinfer"])
def test_a_decode_after_an_extend_is_right(kind: str, version: str, runner: Runner) -> None:
    # Prefills of flashinfer ignore windows (issue 33915), and those of torch_native did before 0.5.13 (PR 26516).
    # Decodes of Triton lose the oldest key of a window (PR 32087).
    windowed = kind == "fa3" or (kind == "torch_native" and version != "0.5.9")
    for window in (-1, 9) if windowed else (-1,):
        geometry = replace(GEOMETRY, window_left=window, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16)
        name = f"sglang=={version}:{kind}"
        case = Case(backend=name, geometry=geometry, steps=(_EXTEND, _DECODE), views=Views(kv=KvView.TOKEN_MAJOR))
        verdict = runner.verdict(case)
        assert verdict.unsupported is None
        assert verdict.failures == ()
        assert verdict.rows


_DRAFTS: dict[str, Any] = {"padded_tokens": 8, "tokens_per_request": 4}
_VERIFY = Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 4, 40), Request(1, 4, 7)), **_DRAFTS)
_CAPTURE = Step(mode=Mode.TARGET_VERIFY, requests=(), launch=Launch.CAPTURE, **_DRAFTS)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_triton_verifies_trees_eagerly_and_in_graphs(version: str, runner: Runner) -> None:
    geometry = replace(GEOMETRY, page_size=1, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16)
    verdict = runner.verdict(
        Case(
            backend=f"sglang=={version}:triton",
            geometry=geometry,
            steps=(_VERIFY, _CAPTURE, replace(_VERIFY, launch=Launch.REPLAY)),
            views=Views(kv=KvView.TOKEN_MAJOR),
            mask=Mask.TREE,
        )
    )
    assert verdict.unsupported is None
    assert verdict.failures == ()
    assert verdict.rows
