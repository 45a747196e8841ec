"""Modules that a bucket needs are those that a plan for its geometries loads."""

import pickle
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from attnfuzz.kernels.gpu.wrappers.backends import WRAPPER_BACKENDS, decode_modules, prefill_modules
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")
from flashinfer.jit.attention import modules

BUCKET = Bucket(
    dtype=DType.FLOAT16,
    kv_dtype=DType.FLOAT8_E4M3,
    head_dim_qk=192,
    head_dim_vo=128,
    heads=((1, 1),),
    page_sizes=(16,),
    layouts=(KvLayout.NHD,),
    windows=(-1, 3, 5),
)
DTYPES = (torch.float16, torch.float8_e4m3fn, torch.float16, torch.int32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """What FlashInfer's generators are asked for, by their names."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    for name in ("_gen_batch_prefill_primary_module", "gen_batch_prefill_module", "gen_batch_decode_module"):
        monkeypatch.setattr(modules, name, lambda *arguments, name=name: found.append((name, arguments)))
    return found


@pytest.mark.parametrize(
    ("backend", "generator"), [("fa2", "_gen_batch_prefill_primary_module"), ("fa3", "gen_batch_prefill_module")]
)
def test_prefill_has_a_module_with_a_window_and_one_without(
    asked: list[tuple[str, tuple[Any, ...]]], backend: str, generator: str
) -> None:
    for module in prefill_modules(BUCKET, backend):
        module.spec()
    shared = (backend, *DTYPES, 192, 128, 0)
    assert asked == [(generator, (*shared, window, False, False)) for window in (False, True)]


def test_decode_has_modules_of_its_own(asked: list[tuple[str, tuple[Any, ...]]]) -> None:
    for module in decode_modules(replace(BUCKET, soft_caps=(30.0, 5.0))):
        module.spec()
    assert asked == [("gen_batch_decode_module", (*DTYPES, 192, 128, 0, window, True)) for window in (False, True)]


def test_a_release_without_primary_modules_gets_the_only_one(
    asked: list[tuple[str, tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(modules, "_gen_batch_prefill_primary_module")
    for module in prefill_modules(BUCKET, "fa2"):
        module.spec()
    assert {name for name, _ in asked} == {"gen_batch_prefill_module"}


def test_modules_of_all_backends_reach_another_process_and_have_names_of_their_own() -> None:
    found = {module.name: module for backend in WRAPPER_BACKENDS for module in backend.modules()}
    assert {name: pickle.loads(pickle.dumps(module)).name for name, module in found.items()} == {n: n for n in found}  # noqa: S301 - its own
    assert len({pickle.dumps(module.spec) for module in found.values()}) == len(found)
