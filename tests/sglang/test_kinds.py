"""Backends of releases on a small batch of each of their modes."""

from pathlib import Path
from typing import Any

import pytest
from engine_cases import GEOMETRY
from msgspec.structs import replace
from planted_tree import planted_tree

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.case import Case, KvView, Launch, Mask, Mode, Request, Step, Views
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Latent

pytestmark = pytest.mark.sglang

_DECODE = Step(mode=Mode.DECODE, requests=(Request(0, 1, 40), Request(1, 1, 7)), padded_tokens=2, tokens_per_request=1)
_EXTEND = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 45), Request(1, 3, 3)), padded_tokens=8)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
@pytest.mark.parametrize("kind", ["torch_native", "flex_attention", "triton", "fa3", "flashinfer"])
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


def _drafting(backend: str, seed: int) -> Case:
    """Return a case whose verifies run on the backend of prefills with seed 0, and on that of decodes with seed 2."""
    steps = (_EXTEND, _CAPTURE, replace(_VERIFY, launch=Launch.REPLAY), _VERIFY, _DECODE)
    return Case(backend=backend, geometry=GEOMETRY, steps=steps, views=Views(kv=KvView.TOKEN_MAJOR), seed=seed)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_either_of_two_backends_verifies(version: str, runner: Runner) -> None:
    for seed in (0, 2):
        verdict = runner.verdict(_drafting(f"sglang=={version}:fa3+flashinfer", seed))
        assert verdict.unsupported is None
        assert verdict.failures == ()
        assert verdict.rows


def test_buffers_of_the_other_backend_are_missed(tmp_path: Path, runner: Runner) -> None:
    file = Path("sglang", "srt", "layers", "attention", "hybrid_attn_backend.py")
    right = "is not None and self.spec_attn_is_prefill"
    tree = planted_tree(SGLANG, "0.5.23", tmp_path, (file, right, "is not None and self.spec_attn_is_decode"))
    failed = {seed: runner.verdict(_drafting(f"{tree}:fa3+flashinfer", seed)).failures for seed in (0, 2)}
    assert failed[0]
    assert not failed[2]


@pytest.mark.parametrize(("version", "raised"), [("0.5.16", True), ("0.5.17", False)])
def test_projected_prefills_of_a_pair_are_planned_since_0_5_17(version: str, raised: bool, runner: Runner) -> None:
    case = Case(
        backend=f"sglang=={version}:flashinfer_mla+trtllm_mla",
        geometry=replace(
            GEOMETRY, kv_heads=1, head_dim_qk=40, head_dim_vo=32, page_size=32, latent=Latent(32, 8, 16, 16)
        ),
        steps=(_EXTEND,),
        views=Views(kv=KvView.TOKEN_MAJOR),
        seed=1,
    )
    kinds = {each.kind for each in runner.verdict(case).failures}
    assert (Kind.RAISED in kinds) is raised


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
