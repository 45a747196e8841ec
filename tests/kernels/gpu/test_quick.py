"""A quick set of modules covers pairs of features within a budget, and a limited backend has what is compiled."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.build_record import ARCH_LIST, Built, Module
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.quick import cost, limited, only_built, quick_set, variants
from attnfuzz.kernels.gpu.wrappers.backends import EIGHT_BITS, PLAIN, WRAPPER_BACKENDS, each_variant
from attnfuzz.kernels.gpu.wrappers.other_layers import FOR_OTHER_LAYERS
from attnfuzz.kernels.interface.toolchain import BUILT, lacks_modules
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket

FA2_PAGED, FA3_PAGED = (
    next(backend for backend in WRAPPER_BACKENDS if backend.name == name) for name in ("fa2_paged", "fa3_paged")
)
WINDOWS = replace(PLAIN, windows=(-1, 3, 7), heads=((1, 1),), page_sizes=(16,))


def modules_of(bucket: Bucket) -> tuple[Module, ...]:
    return each_variant(bucket, "batch decode", lambda *_: None)


def with_buckets(*buckets: Bucket) -> GpuBackend:
    capability = replace(FA2_PAGED.capability, buckets=buckets)
    fields = {name: getattr(FA2_PAGED, name) for name in FA2_PAGED.__dataclass_fields__}
    return GpuBackend(**{**fields, "capability": capability, "modules_of": modules_of})


@pytest.fixture
def compile_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Record modules as compiled, by name."""
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path))
    monkeypatch.setenv(ARCH_LIST, "9.0a")
    library = tmp_path / "library.so"
    library.touch()

    def record(*names: str) -> None:
        built = Built(library=str(library), base=build_record.workspace_base())
        build_record.add("9.0a", dict.fromkeys(names, built))

    return record


def test_a_bucket_has_a_variant_for_each_compile_time_choice() -> None:
    found = list(variants(with_buckets(WINDOWS)))
    assert [len(variant.modules) for variant in found] == [1, 1]
    assert ["window True" in variant.features for variant in found] == [False, True]


def test_an_unlimited_budget_covers_every_pair() -> None:
    chosen = quick_set([FA2_PAGED, FA3_PAGED], budget=1e9)
    assert chosen.covered == chosen.pairs
    assert set(chosen.modules) <= {*FA2_PAGED.modules(), *FA3_PAGED.modules()}


def test_a_budget_is_kept_and_spent_on_the_largest_coverage() -> None:
    every = quick_set([FA3_PAGED], budget=1e9)
    dearest = max(map(cost, FA3_PAGED.modules()))
    chosen = quick_set([FA3_PAGED], budget=dearest)
    assert len(chosen.modules) == 1
    assert 0 < chosen.covered < every.covered
    assert quick_set([FA3_PAGED], budget=dearest - 1).modules == ()


def test_pairs_that_are_left_out_are_named() -> None:
    every = quick_set([FA3_PAGED], budget=1e9)
    assert every.left == ()
    chosen = quick_set([FA3_PAGED], budget=max(map(cost, FA3_PAGED.modules())))
    assert len(chosen.left) == chosen.pairs - chosen.covered
    assert ("queries bfloat16", "window True") in chosen.left


def test_recorded_times_replace_estimates() -> None:
    (first, *_) = modules = FA3_PAGED.modules()
    cheap = {module.name: Built(library="a", core_seconds=1.0, base="") for module in modules}
    assert cost(first, cheap) == 1.0
    assert quick_set([FA3_PAGED], budget=len(modules), known=cheap).left == ()
    assert quick_set([FA3_PAGED], budget=len(modules)).modules == ()


def test_only_modules_that_touch_a_file_are_chosen_with_those_that_they_are_used_with() -> None:
    (window,) = (each for each in FA3_PAGED.modules() if "window" in each.name)
    chosen = quick_set([FA2_PAGED, FA3_PAGED], budget=1e9, touching=[window])
    assert chosen.modules == (window,)
    assert chosen.left == ()
    packing = next(each for each in FA2_PAGED.modules() if each.name == "packing of bits")
    assert set(quick_set([FA2_PAGED, FA3_PAGED], budget=1e9, touching=[packing]).modules) == set(FA2_PAGED.modules())


@pytest.mark.parametrize("name", ["fa2_paged", "fa2_ragged", "batch_decode", "fa3_paged", "single_decode"])
def test_windows_over_16_bits_are_among_the_geometries(name: str) -> None:
    features = [each.features for backend in GPU_BACKENDS if backend.name == name for each in variants(backend)]
    assert any({"KV bfloat16", "queries bfloat16", "window True"} <= each for each in features)


def test_modules_of_one_backend_cover_the_pairs_of_others_with_the_same() -> None:
    other = GpuBackend(**{**{f: getattr(FA2_PAGED, f) for f in FA2_PAGED.__dataclass_fields__}, "name": "other"})
    alone, both = (quick_set(backends, budget=1e9) for backends in ([FA2_PAGED], [FA2_PAGED, other]))
    assert both.modules == alone.modules
    assert both.covered > alone.covered


def test_a_limited_backend_has_the_part_of_a_bucket_that_is_compiled(compile_all: Callable[..., None]) -> None:
    backend = with_buckets(WINDOWS, EIGHT_BITS)
    compile_all("batch decode bfloat16, head dim 64, window")
    (bucket,) = only_built(backend, build_record.ready()).capability.buckets
    assert bucket == replace(WINDOWS, windows=(3, 7))
    compile_all(*(module.name for module in backend.modules()))
    assert only_built(backend, build_record.ready()).capability.buckets == backend.capability.buckets


def test_a_limited_backend_plans_for_no_layer_that_is_not_compiled(compile_all: Callable[..., None]) -> None:
    opened: list[object] = []
    backend = with_buckets(replace(WINDOWS, heads=((1, 1), (4, 1))), EIGHT_BITS)
    opening: Any = partial(lambda *, buckets: opened.append(buckets), buckets=())
    made = dataclasses.replace(backend, session=opening)
    compile_all("batch decode bfloat16, head dim 64, window")
    few = only_built(made, build_record.ready())
    others = FOR_OTHER_LAYERS.intersection(made.capability.earlier_uses)
    assert others == FOR_OTHER_LAYERS
    assert FOR_OTHER_LAYERS.intersection(few.capability.earlier_uses) == {
        EarlierUse.PLANNED_OTHER_HEADS,
        EarlierUse.PLANNED_OTHER_WINDOW,
    }
    assert EarlierUse.PLANNED_ALIKE in few.capability.earlier_uses
    session: Any = few.session
    session()
    assert opened == [few.capability.buckets]


def test_sessions_that_plan_for_other_layers_take_buckets() -> None:
    planning = [each for each in GPU_BACKENDS if FOR_OTHER_LAYERS.intersection(each.capability.earlier_uses)]
    assert planning
    assert [each.name for each in planning if "buckets" not in inspect.signature(each.session).parameters] == []


def test_a_backend_without_compiled_modules_or_without_modules_stays(compile_all: Callable[..., None]) -> None:
    compile_all("another")
    backend = with_buckets(WINDOWS)
    assert only_built(backend, build_record.ready()) is backend


def test_a_backend_has_no_modules_if_compiled_ones_are_asked_for_and_none_is(
    compile_all: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_all("another")
    monkeypatch.delenv(BUILT, raising=False)
    two_modules = with_buckets(WINDOWS)
    backends = (
        two_modules,
        dataclasses.replace(two_modules, name="none", modules_of=lambda _: ()),
        dataclasses.replace(with_buckets(), name="no buckets"),
        resolve("torch_sdpa"),
    )
    assert [lacks_modules(each) for each in backends] == [False] * 4
    monkeypatch.setenv(BUILT, "1")
    assert [lacks_modules(each) for each in backends] == [True, False, False, False]
    compile_all("batch decode bfloat16, head dim 64")
    assert [lacks_modules(each) for each in backends] == [False] * 4


def test_backends_are_limited_only_if_the_environment_asks_for_it(
    compile_all: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = with_buckets(WINDOWS)
    compile_all("batch decode bfloat16, head dim 64")
    monkeypatch.delenv(BUILT, raising=False)
    assert limited([backend]) == (backend,)
    monkeypatch.setenv(BUILT, "1")
    (few,) = limited([backend])
    assert few.capability.buckets == (replace(WINDOWS, windows=(-1,)),)
    assert BUILT == "ATTNFUZZ_BUILT"
