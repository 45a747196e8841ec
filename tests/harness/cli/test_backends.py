"""What `attnfuzz backends` tells people and scripts."""

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import fake_nvml
import pytest
from command_line import Attnfuzz
from msgspec.structs import replace
from refusals import refused

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS
from attnfuzz.harness.backends.load import ENTRY_POINTS
from attnfuzz.harness.backends.registry import builtin
from attnfuzz.harness.campaign.home import MARGINS
from attnfuzz.harness.family import families
from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.libraries.catalogue import LIBRARY_BACKENDS
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend
from attnfuzz.kernels.trtllm.backends import MHA_MASKED, MHA_NVFP4, MHA_SCALED, MHA_WINDOWED
from attnfuzz.reference.device import Device
from attnfuzz.reference.recorded_margins import encoded, shipped

OTHERS = (
    MHA_SCALED.name,
    MHA_NVFP4.name,
    MHA_MASKED.name,
    MHA_WINDOWED.name,
    "trtllm_mha_planned",
    "trtllm_token_sparse",
    "torch_sdpa_any_scale",
)
OF_FAMILIES = (backend.name for family in families() for backend in family.backends)
RUNS_HERE = sorted({*DEFAULT_BACKENDS, *OTHERS, *OF_FAMILIES, *(writer.name for writer in NATIVE_WRITERS)})
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


def test_margins_of_a_home_stand_beside_the_shipped_ones(attnfuzz: Attnfuzz) -> None:
    record = replace(next(each for each in shipped() if each.backend == "torch_sdpa"), rows=123_456, date="2026-12-01")
    home = Path("attnfuzz-out")
    home.mkdir()
    (home / MARGINS).write_bytes(encoded([record]))
    ran = attnfuzz("backends", "--margins", "torch_sdpa", "trtllm_mha_masked")
    assert ran.code == 0, ran.err
    sources = [line for line in ran.out.splitlines() if ", attnfuzz " in line]
    assert [line.split(":")[0] for line in sources] == ["Shipped", f"Of {home}"]
    assert "123,456" in ran.out
    assert "calibrated" in ran.out
    assert "None recorded of: trtllm_mha_masked" in ran.out
    listed = json.loads(attnfuzz("backends", "--margins", "torch_sdpa", "--json", "-").out)["margins"]
    assert {each["dtype"] for each in listed} == {"float32", "bfloat16", "float16"}
    assert [each["rows"] for each in listed if not each["shipped"]] == [123_456]


def test_margins_of_a_damaged_home_and_a_home_without_margins_are_refused(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / MARGINS).write_text("[")
    refused(attnfuzz("backends", "--margins", "--home", str(tmp_path)), "no list of margins")
    refused(attnfuzz("backends", "--home", str(tmp_path)), "--margins")


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


@pytest.mark.parametrize(
    ("name", "features", "compared"),
    [
        ("native:kda", "kda: prefill, decode, verify.", "Outputs and states compared within bounds"),
        ("native:sparse", "top-k + transform;", "Noise model from theory."),
        ("native:reshape_and_cache", "graphs, padding.", "compared bit for bit."),
    ],
)
def test_a_backend_is_listed_with_its_ops_and_how_its_results_are_compared(
    attnfuzz: Attnfuzz, name: str, features: str, compared: str
) -> None:
    listed = attnfuzz("backends", name).out
    assert features in listed
    assert compared in listed
