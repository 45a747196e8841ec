"""Modules that a bucket needs are those that a plan for its geometries loads."""

import inspect
import pickle
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.backends import WRAPPER_BACKENDS, decode_modules, prefill_modules
from attnfuzz.kernels.gpu.wrappers.sinks import (
    FA2_SINKS,
    FA2_SINKS_DECODE,
    FA3_SINKS,
    FA3_SINKS_DECODE,
    SECOND_SINK_BACKENDS,
    SINK_BACKENDS,
    SINK_DECODE_BACKENDS,
)
from attnfuzz.kernels.gpu.wrappers.token_head_scales import TOKEN_HEAD
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")
from flashinfer import attention, decode, prefill
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


class _LoadedError(Exception):
    """Ends a constructor where it would compile its module."""


Asked = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def asked_with_sinks(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Asked], list[Asked]]:
    """The modules that constructors load, and those that a build compiles."""
    loaded: list[Asked] = []
    built: list[Asked] = []

    def load(*arguments: Any, **more: Any) -> None:
        loaded.append((arguments, more))
        raise _LoadedError

    monkeypatch.setattr(prefill, "get_customize_batch_prefill_module", load)
    monkeypatch.setattr(decode, "gen_customize_batch_prefill_module", load)
    monkeypatch.setattr(
        modules, "gen_customize_batch_prefill_module", lambda *arguments, **more: built.append((arguments, more))
    )
    return loaded, built


def _make_and_build(backend: GpuBackend) -> None:
    of_fa2, of_fa3 = (FA2_SINKS_DECODE, FA3_SINKS_DECODE) if backend.name.endswith("decode") else (FA2_SINKS, FA3_SINKS)
    form = of_fa3 if backend.name.startswith("fa3") else of_fa2
    for bucket in backend.capability.buckets:
        for module in backend.modules_of(bucket):
            module.spec()
        for window in sorted({left >= 0 for left in bucket.windows}):
            geometry = replace(bucket.simplest, window_left=0 if window else -1)
            common = {"float_workspace_buffer": torch.empty(0), "kv_layout": geometry.kv_layout.value}
            with pytest.raises(_LoadedError):
                getattr(attention, form.name)(**form.constructed(geometry, common, in_graph=False))


_WITH_SINKS = (
    *SINK_BACKENDS,
    # Since 0.7.4.
    *(SINK_DECODE_BACKENDS * hasattr(attention, "BatchDecodeWithAttentionSinkWrapper")),
)


@pytest.mark.parametrize("backend", _WITH_SINKS, ids=lambda each: each.name)
def test_a_build_compiles_the_modules_that_constructors_with_sinks_load(
    asked_with_sinks: tuple[list[Asked], list[Asked]], backend: GpuBackend
) -> None:
    _make_and_build(backend)
    loaded, built = asked_with_sinks
    assert loaded == built


@pytest.mark.parametrize("backend", SECOND_SINK_BACKENDS, ids=lambda each: each.name)
def test_a_second_wrapper_with_sinks_loads_a_module_whose_name_was_compiled(
    asked_with_sinks: tuple[list[Asked], list[Asked]], backend: GpuBackend
) -> None:
    """The name is that of the first wrapper's module, or in later releases of a module of its own."""
    _make_and_build(backend)
    loaded, built = asked_with_sinks
    assert {arguments[1] for arguments, _ in loaded} <= {arguments[1] for arguments, _ in built}


@pytest.mark.skipif(
    "use_token_head_sf" not in inspect.signature(modules.gen_batch_prefill_module).parameters, reason="since 0.7.4"
)
def test_modules_of_scales_per_token_and_head_are_made_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name in ("_gen_batch_prefill_primary_module", "_gen_batch_prefill_independent_paged_module"):
        bind = inspect.signature(getattr(modules, name)).bind
        monkeypatch.setattr(modules, name, lambda *args, bind=bind, **named: made.append(bind(*args, **named)))
    for module in TOKEN_HEAD.modules_of(BUCKET)[:-1]:
        module.spec()
    assert [each.arguments["use_token_head_sf"] for each in made] == [True] * 4
    assert [each.arguments["use_sliding_window"] for each in made] == [False, True] * 2
