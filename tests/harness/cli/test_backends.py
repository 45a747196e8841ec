"""What `attnfuzz backends` tells people and scripts."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import fake_nvml
import pytest
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS
from attnfuzz.harness.backends.load import ENTRY_POINTS
from attnfuzz.harness.backends.registry import builtin
from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.libraries.catalogue import LIBRARY_BACKENDS
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend
from attnfuzz.kernels.trtllm.backends import MHA_MASKED, MHA_NVFP4, MHA_SCALED
from attnfuzz.reference.device import Device

OTHERS = (MHA_SCALED.name, MHA_NVFP4.name, MHA_MASKED.name, "trtllm_mha_planned", "torch_sdpa_any_scale")
RUNS_HERE = sorted((*DEFAULT_BACKENDS, *OTHERS, *(writer.name for writer in NATIVE_WRITERS)))
"""This project's own backends that run without a GPU."""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch)


def of_this_project(names: str) -> list[str]:
    """The names without those of libraries, of which some may be installed."""
    libraries = {backend.name for backend in LIBRARY_BACKENDS}
    return [name for name in names.split() if name not in libraries]


def test_runnable_lists_the_names_of_backends_without_revisions(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = attnfuzz("backends", "--runnable")
    assert ran.code == 0
    assert of_this_project(ran.out) == RUNS_HERE
    monkeypatch.setattr(SdpaBackend, "missing", lambda _: "no GPU")
    assert "torch_sdpa" not in attnfuzz("backends", "--runnable").out


def test_runnable_lists_the_backends_of_a_device(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuBackend, "missing", lambda _: None)
    on_gpu = attnfuzz("backends", "--runnable", "--device", "cuda").out.split()
    assert {"hopper:trtllm_mha", "xqa", "fa2_paged", "cuda_fixup"} <= set(on_gpu)
    assert not set(DEFAULT_BACKENDS) & set(on_gpu)
    assert of_this_project(attnfuzz("backends", "--runnable", "--device", "cpu").out) == RUNS_HERE


def test_those_of_a_device_are_listed_within_80_columns(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("backends", "--device", "cuda")
    assert ran.code == 0
    first = {line.split()[0] for line in ran.out.splitlines() if line.strip() and not line.startswith(" ")}
    wanted = {name for name, backend in builtin().items() if backend.capability.device is Device.CUDA}
    short = {name for name in wanted if len(name) <= 26}
    assert short <= first
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_reason_is_reported_once_for_all_that_it_keeps_from_running(attnfuzz: Attnfuzz) -> None:
    out = " ".join(attnfuzz("backends").out.split())
    assert out.count("needs a GPU of Hopper (SM90), which ") == 1
    assert "Not here: " in out


def test_geometries_with_modules_are_listed(attnfuzz: Attnfuzz) -> None:
    out = " ".join(attnfuzz("backends", "--device", "cuda").out.split())
    assert "float16 over float8_e4m3fn KV with head dim 128" in out
    assert "LSE base 2" in out
    assert "No LSE" in out


@pytest.mark.slow
def test_an_installed_backend_that_does_not_load_is_left_out_and_named(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = EntryPoints([EntryPoint("broken", "surely_not_installed:MINE", ENTRY_POINTS)])
    monkeypatch.setattr(registry, "entry_points", offered.select)
    ran = attnfuzz("backends", "--runnable")
    assert ran.code == 0
    assert of_this_project(ran.out) == RUNS_HERE
    assert ran.err.startswith("Skipped: backend broken: its entry point surely_not_installed:MINE fails:")
    refused(attnfuzz("backends", "broken"), "surely_not_installed")


@pytest.mark.slow
def test_exact_head_dims_and_scales_are_listed(attnfuzz: Attnfuzz) -> None:
    """A user's file is loaded in a worker. Backends are known by name, so that no other test may have this one."""
    Path("exact_dims.py").write_text(
        """
from attnfuzz import Capability, DType, FunctionBackend, Mode

def attend(**_): ...

SCALES = {"fp8_kv": True, "kv_scales": (DType.FLOAT8_E4M3,)}
MINE = FunctionBackend(attend, Capability(modes=(Mode.DECODE,), head_dims=(64, 128), patience=3, **SCALES))
"""
    )
    ran = attnfuzz("backends", "exact_dims.py:MINE")
    out = " ".join(ran.out.split())
    assert ran.code == 0, ran.err
    assert "head dims 64, 128" in out
    assert "scales of K and V" in out
