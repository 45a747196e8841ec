"""What a release's backend on a Hopper GPU says of itself, without the release and without a GPU."""

import pytest
from packaging.version import Version

from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.on_hopper import HopperRelease
from attnfuzz.kernels.sglang import backends
from attnfuzz.kernels.sglang.adaptations import changes_in
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.case import Mode
from attnfuzz.reference.device import Device


def on_hopper(version: str, kind: str = "trtllm_mha") -> HopperRelease:
    """The backend of a release."""
    found = ENGINE.backend_of(Named.parse(SGLANG, f"hopper:sglang=={version}:{kind}"))
    assert isinstance(found, HopperRelease)
    return found


@pytest.mark.parametrize("kind", ["trtllm_mha", "trtllm_mla"])
def test_it_runs_on_a_gpu_under_a_name_that_says_so(kind: str) -> None:
    found = on_hopper("0.5.9", kind)
    assert found.capability.device is Device.CUDA
    assert found.name == f"hopper:sglang==0.5.9:{kind}"


def test_it_has_the_modes_and_graphs_of_its_release() -> None:
    gpu, cpu = (
        on_hopper("0.5.23").capability,
        ENGINE.backend_of(Named.parse(SGLANG, "sglang==0.5.23:trtllm_mha")).capability,
    )
    assert set(cpu.modes) - set(gpu.modes) == {Mode.DRAFT_DECODE}
    assert (gpu.graph_modes, gpu.padding) == (cpu.graph_modes, cpu.padding)


def test_a_version_that_servers_run_on_hopper_gets_flashinfers_kernels_in_geometries_that_are_compiled() -> None:
    found = on_hopper("0.5.19")
    assert [op.name for op in found.kernels] == ["trtllm_batch_decode_with_kv_cache", "trtllm_fmha_v2_prefill"]
    assert found.capability.buckets
    assert any(module.name.startswith("XQA") for module in found.modules())


@pytest.mark.parametrize(("version", "kind"), [("0.5.18", "trtllm_mha"), ("0.5.23", "trtllm_mla")])
def test_backends_for_blackwell_get_plain_kernels_in_any_geometry(version: str, kind: str) -> None:
    found = on_hopper(version, kind)
    assert found.modules() == ()
    assert not found.capability.buckets


def test_packages_of_sglang_are_required_only_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    monkeypatch.setattr(backends, "NEEDS", ("no_such_package",))
    assert on_hopper("0.5.9").missing() == "needs no_such_package: pip install 'attnfuzz[sglang]'"


@pytest.mark.parametrize(
    ("version", "modules"),
    [("0.5.18", []), ("0.5.19", ["utils.common"])],
)
def test_releases_are_sent_about_hopper_where_they_look(version: str, modules: list[str]) -> None:
    changes = [change for change in changes_in(Version(version), hopper=True) if change.on_hopper]
    assert [change.module for change in changes] == modules
    assert not any(change.on_hopper for change in changes_in(Version(version)))
    assert all(change.value() for change in changes)
