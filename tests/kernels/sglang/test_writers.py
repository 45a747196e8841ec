"""A release's writers of the KV cache, with functions of its signatures in the place of its CUDA kernels."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from small_cases import drawn_for, lighter

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.naming import BadName, Named
from attnfuzz.kernels.releases.on_hopper import HopperRelease
from attnfuzz.kernels.sglang import compiled
from attnfuzz.kernels.sglang.compiled import Compilation, CompiledKernel
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.stand_ins import launching
from attnfuzz.reference.case import PaddedSlot, Tombstone
from attnfuzz.reference.device import Device


def put(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, skipped: int) -> None:
    """Write rows as the CUDA kernels do, which check what is checked here."""
    assert rows.ndim == cache.ndim == 2
    assert rows.stride(1) == cache.stride(1) == 1
    assert rows.dtype == cache.dtype
    assert slots.dtype in (torch.int32, torch.int64)
    assert slots.shape == rows.shape[:1]
    kept = slots != skipped
    cache.view(torch.int16)[slots[kept].long()] = rows.view(torch.int16)[kept]


def store_cache_before_0_5_13(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    row_bytes: int = 0,
    num_split: int = 0,
) -> None:
    del num_split
    assert row_bytes == k.shape[-1] * k.element_size()
    assert k_cache.stride() == v_cache.stride()
    for cache, rows in ((k_cache, k), (v_cache, v)):
        put(cache, rows, indices, -1)


def store_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    row_bytes: int = 0,
    v_row_bytes: int = 0,
    num_split: int = 0,
    size_limit: int = 0,
    reserved_skip_index: int = 0,
) -> None:
    del num_split
    assert (row_bytes, v_row_bytes) == (k.shape[-1] * k.element_size(), v.shape[-1] * v.element_size())
    assert size_limit == len(k_cache) == len(v_cache)
    assert ((indices >= 0) & (indices < size_limit)).all()
    assert not torch.is_grad_enabled()
    for cache, rows in ((k_cache, k), (v_cache, v)):
        put(cache, rows, indices, reserved_skip_index)


def set_mla_kv_buffer(
    kv_buffer: torch.Tensor,
    loc: torch.Tensor,
    cache_k_nope: torch.Tensor,
    cache_k_rope: torch.Tensor,
    num_warps: int = 0,
    *,
    reserved_skip_index: int = 0,
) -> None:
    del num_warps
    rows = kv_buffer.view(kv_buffer.shape[0], -1)
    nope, rope = (each.view(len(loc), -1) for each in (cache_k_nope, cache_k_rope))
    assert (nope.shape[1], rope.shape[1]) == (512, 64)
    put(rows[:, :512], nope, loc, reserved_skip_index)
    put(rows[:, 512:], rope, loc, reserved_skip_index)


class Loaded:
    """A release that has one module with `members`."""

    def __init__(self, name: str, **members: Callable[..., object]) -> None:
        self.name, self._module = name, SimpleNamespace(__name__=name, **members)

    def has(self, name: str) -> bool:
        return name == self.name

    def module(self, name: str) -> Any:
        assert name == self.name
        return self._module


def writer(name: str) -> HopperRelease:
    found = ENGINE.resolve(name)
    assert isinstance(found, HopperRelease)
    return found


def loads(monkeypatch: pytest.MonkeyPatch, loaded: Loaded) -> None:
    """Make that the release of this process."""
    monkeypatch.setattr(compiled, "release_of", lambda *_: None)
    monkeypatch.setattr(compiled, "load", lambda *_, **__: loaded)


def failures(backend: HopperRelease, examples: int) -> set[str]:
    """The kinds of failures of drawn cases, on the CPU."""
    capability = msgspec.structs.replace(backend.capability, device=Device.CPU)
    here = replace(backend, capability=capability, modules_of=lambda _: ())
    found = lighter(drawn_for(here.capability, examples, seed=3))
    verdicts = [Execution(Task(case=case, backend=""), lambda _: None, backend=here).run() for case in found]
    assert not any(verdict.unsupported for verdict in verdicts)
    return {str(seen.kind) for verdict in verdicts for seen in verdict.observations}


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("sglang==0.5.9:store_cache", "sglang.jit_kernel.kvcache", store_cache_before_0_5_13),
        ("sglang==0.5.23:store_cache", "sglang.kernels.ops.kvcache.kvcache", store_cache),
        ("sglang==0.5.23:set_mla_kv_buffer", "sglang.kernels.ops.kvcache.set_mla_kv_buffer", set_mla_kv_buffer),
    ],
)
def test_drawn_cases_pass_as_the_kernel_checks_its_arguments(
    name: str, module: str, function: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads(monkeypatch, Loaded(module, **{name.rpartition(":")[2]: function}))
    assert not failures(writer(f"hopper:{name}"), examples=20)


def test_a_library_that_is_launched_elsewhere_runs_within_the_launch_of_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions of attention let the libraries of load_jit launch through them."""
    library = launching(lambda *_: SimpleNamespace(store_cache=lambda *args: store_cache(*args[:5], **args[5])))()

    def by_library(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any, **more: int) -> None:
        library.store_cache(k, v, k_cache, v_cache, indices, more)

    loads(monkeypatch, Loaded("sglang.kernels.ops.kvcache.kvcache", store_cache=by_library))
    assert not failures(writer("hopper:sglang==0.5.23:store_cache"), examples=5)


def test_a_kernel_that_writes_to_the_reserved_slot_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def skips_nothing(**arguments: Any) -> None:
        store_cache(**arguments, reserved_skip_index=-1)

    loads(monkeypatch, Loaded("sglang.kernels.ops.kvcache.kvcache", store_cache=skips_nothing))
    assert failures(writer("hopper:sglang==0.5.23:store_cache"), examples=20) == {"StrayWrite"}


@pytest.mark.parametrize(
    ("version", "kind", "padded"),
    [
        ("0.5.16", "store_cache", PaddedSlot.DUMMY),
        ("0.5.17", "store_cache", PaddedSlot.RESERVED),
        ("0.5.18", "set_mla_kv_buffer", PaddedSlot.DUMMY),
        ("0.5.19", "set_mla_kv_buffer", PaddedSlot.RESERVED),
    ],
)
def test_slot_0_has_to_be_skipped_from_the_version_on_that_skips_it(
    version: str, kind: str, padded: PaddedSlot
) -> None:
    assert writer(f"hopper:sglang=={version}:{kind}").capability.padded_slots == (padded,)


def test_layers_with_a_window_have_pools_of_their_own_and_latents_have_none() -> None:
    keys, latents = (
        writer(f"hopper:sglang==0.5.23:{kind}").capability for kind in ("store_cache", "set_mla_kv_buffer")
    )
    assert (keys.tombstones, keys.window_tail) == ((Tombstone.NULL,), True)
    assert (latents.tombstones, latents.window_tail) == ((), False)


def test_without_a_gpu_it_is_missing_for_that_reason() -> None:
    missing = writer("hopper:sglang==0.5.23:store_cache").missing()
    assert missing is not None
    assert missing.startswith("needs a GPU of Hopper (SM90)")


@pytest.mark.parametrize("kind", SGLANG.gpu_kinds)
def test_a_name_on_the_cpu_is_answered_with_that_on_the_gpu(kind: str) -> None:
    with pytest.raises(BadName, match=rf"{kind} runs on a GPU alone, as hopper:sglang==0.5.23:{kind}$"):
        Named.parse(SGLANG, f"sglang==0.5.23:{kind}")


def test_a_release_without_the_kernel_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"0\.5\.9 has no set_mla_kv_buffer: name a release from 0\.5\.12 on"):
        writer("hopper:sglang==0.5.9:set_mla_kv_buffer")


def test_each_width_of_rows_is_a_module_and_a_tree_has_none(tmp_path: Any) -> None:
    (tmp_path / "sglang/srt/layers/attention").mkdir(parents=True)
    (tmp_path / "sglang/_version.py").write_text("__version__ = '0.5.23'\n")
    names = {module.name for module in writer("hopper:sglang==0.5.23:store_cache").modules()}
    assert "sglang==0.5.23: store_cache of 1152 and 768 bytes" in names
    assert len(writer("hopper:sglang==0.5.23:set_mla_kv_buffer").modules()) == 1
    assert not writer(f"hopper:sglang@{tmp_path}:store_cache").modules()


KERNEL = CompiledKernel("kvcache", "store_cache", "can_use_store_cache")


def test_a_compilation_asks_for_as_many_widths_as_the_release_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def one_width(size: int) -> bool:
        asked.append((size,))
        return True

    def two_widths(k_row_bytes: int, v_row_bytes: int = 0, num_threads: int = 0) -> bool:
        asked.append((k_row_bytes, v_row_bytes, num_threads))
        return True

    monkeypatch.setattr(compiled, "_mapped", lambda: "library.so")
    for compiles in (one_width, two_widths):
        loads(monkeypatch, Loaded("sglang.jit_kernel.kvcache", can_use_store_cache=compiles))
        made = Compilation("sglang==0.5.9", KERNEL, (256, 128))
        made.build(verbose=False, need_lock=True)
        assert str(made.get_library_path()) == "library.so"
    assert asked == [(256,), (256, 128, 0)]
    assert set(inspect.signature(Compilation.build).parameters) == {"self", "verbose", "need_lock"}


def test_a_refusal_has_the_warning_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(size: int) -> bool:
        logging.getLogger("sglang.jit_kernel.kvcache").warning("cuda.cu(3): error: no such row of %d", size)
        return False

    loads(monkeypatch, Loaded("sglang.jit_kernel.kvcache", can_use_store_cache=refuses))
    with pytest.raises(RuntimeError, match="no such row of 256"):
        Compilation("sglang==0.5.9", KERNEL, (256, 256)).build(verbose=False, need_lock=True)
