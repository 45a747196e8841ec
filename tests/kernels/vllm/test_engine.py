"""vLLM as an engine: names, pinned wheels, the packages that its releases need."""

from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.naming import BadName
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm import backends
from attnfuzz.kernels.vllm.adaptations import STUBBED
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.device import Device


def test_a_backend_is_named_after_its_release() -> None:
    name = "vllm==0.33.0:flashinfer"
    assert ENGINE.resolve(name).name == name
    assert (ENGINE.team(name), ENGINE.without_release(name)) == ("vllm==0.33.0", "vllm:flashinfer")
    assert ENGINE.on_device(name, Device.CUDA) == name


@pytest.mark.parametrize("kind", VLLM.on_hopper)
def test_a_kind_that_runs_on_hopper_has_a_name_there(kind: str) -> None:
    name = f"vllm==0.33.0:{kind}"
    assert ENGINE.on_device(name, Device.CUDA) == f"hopper:{name}"
    assert ENGINE.on_device(f"hopper:{name}", Device.CPU) == name
    backend = ENGINE.resolve(f"hopper:{name}")
    assert backend.capability.device is Device.CUDA
    assert "needs a GPU of Hopper" in (backend.missing() or "")
    assert set(backend.capability.modes) == set(ENGINE.resolve(name).capability.modes)


def test_our_backend_on_the_same_kernels_is_its_equivalent() -> None:
    kinds = [ENGINE.kind_of(name) for name in ("trtllm_mha+v_scale_dropped", "vllm==0.33.0:flashinfer", "trtllm_mla")]
    assert kinds == ["flashinfer", "flashinfer", None]


@pytest.mark.parametrize("name", ["vllm_cpu:attention", "triton:vllm_unified", "trtllm_mha"])
def test_other_names_are_left_alone(name: str) -> None:
    assert not ENGINE.owns(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm==0.17.1:flashinfer", r"from 0\.18\.0 on"),
        ("vllm==0.33.0:flex", "'flex' is not a backend of vLLM that can be tested: flashinfer, .*triton"),
        ("vllm:flashinfer", "--vllm PATH"),
        ("hopper:vllm==0.33.0:flashinfer", "on a Hopper GPU run triton and .*, and flashinfer on the CPU alone"),
    ],
)
def test_the_error_in_a_name_is_reported(name: str, words: str) -> None:
    with pytest.raises(BadName, match=words):
        ENGINE.resolve(name)


def test_a_folder_that_is_no_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="holds no source of vLLM"):
        ENGINE.resolve(f"vllm@{tmp_path}:flashinfer")


def test_the_hashes_that_are_pinned_are_of_versions_that_can_be_driven() -> None:
    pinned = Wheels(VLLM).pinned()
    assert min(map(Version, pinned)) == VLLM.oldest
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pinned.values())


def test_a_missing_package_of_a_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "NEEDS", ("no_such_package",))
    assert ENGINE.resolve("vllm==0.33.0:flashinfer").missing() == (
        "needs no_such_package: pip install 'attnfuzz[vllm]'"
    )


def test_nothing_that_plans_or_attends_is_stubbed() -> None:
    assert not any(row.module.startswith(("vllm.v1.attention", "vllm.v1.worker", "vllm.config")) for row in STUBBED)


def test_a_server_without_a_gpu_has_pinned_wheels_of_its_own(tree: Path) -> None:
    assert ENGINE.untried("vllm==0.33.0:cpu")
    assert not ENGINE.untried("vllm==0.33.0:flashinfer")
    assert not ENGINE.untried("vllm==0.32.0:cpu")
    version = tree / "vllm" / "_version.py"
    version.write_text(version.read_text().replace("0.32.0", "0.33.0"))
    origins = [ENGINE.origin(f"vllm@{tree}:{kind}") for kind in ("cpu", "flashinfer")]
    assert origins == ["vllm==0.32.0:cpu", "vllm==0.33.0:flashinfer"]
