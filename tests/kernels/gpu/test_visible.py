"""Which GPUs are seen, and why kernels can't run."""

import importlib.util
import sys
from pathlib import Path

import fake_nvml
import pytest
import torch
from fake_nvml import B200, H200, L4, OTHER_H200

from attnfuzz.kernels.cuda import discovery, visible
from attnfuzz.kernels.cuda.visible import Arch

HOPPER = frozenset({Arch.HOPPER})
FOUND = visible._found


@pytest.fixture(autouse=True)
def _toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a CUDA build of torch and a compiler."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))


def seen(monkeypatch: pytest.MonkeyPatch, chosen: str) -> list[str]:
    """The UUIDs of what CUDA_VISIBLE_DEVICES leaves of two H200 and a B200."""
    fake_nvml.install(monkeypatch, [H200, OTHER_H200, B200])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    gpus = visible.visible()
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    return [gpu.uuid for gpu in gpus]


def test_all_are_visible_unless_something_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200, L4])
    assert visible.visible() == (
        visible.Gpu(index=0, name="NVIDIA H200", capability="9.0", memory=H200.memory, uuid=H200.uuid),
        visible.Gpu(index=1, name="NVIDIA L4", capability="8.9", memory=L4.memory, uuid=L4.uuid),
    )


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ("", []),
        ("-1", []),
        ("1", [OTHER_H200]),
        ("2, 0", [B200, H200]),
        ("0,7,1", [H200]),
        (B200.uuid, [B200]),
        ("GPU-bbbb,GPU-aaaa1", [B200, H200]),
        ("GPU-aaaa,2", []),
        ("1,GPU-none,0", [OTHER_H200]),
    ],
    ids=[
        "none",
        "minus one",
        "one",
        "another order",
        "up to one that is not there",
        "by UUID",
        "by its beginning",
        "ambiguous",
        "unknown",
    ],
)
def test_chosen_gpus_are_visible_in_their_order(
    chosen: str, left: list[fake_nvml.Chip], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen(monkeypatch, chosen) == [chip.uuid for chip in left]


def test_of_slices_one_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(monkeypatch, "MIG-cccc,0") == ["MIG-cccc"]
    (gpu,) = visible.visible()
    assert (gpu.capability, gpu.memory) == ("9.0", H200.memory // 8)


def test_nothing_is_missing_on_the_right_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200, OTHER_H200])
    assert visible.missing(HOPPER, ("torch",)) is None
    assert visible.architecture() == "sm_90"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (fake_nvml.NVMLError_LibraryNotFound, "which this machine lacks: it has no NVIDIA driver"),
        (fake_nvml.NVMLError, "driver does not answer"),
    ],
)
def test_a_machine_without_a_driver_has_no_gpu(
    error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, error=error)
    assert visible.visible() == ()
    assert visible.architecture() == "no GPU"
    reason = visible.missing(HOPPER, ())
    assert reason is not None
    assert reason.startswith("needs a GPU of Hopper (SM90)")
    assert words in reason


def test_without_the_library_no_gpu_is_reported_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pynvml" else found(name))
    fake_nvml.install(monkeypatch)
    reason = "which can't be detected: package pynvml is not installed: pip install 'attnfuzz[gpu]'"
    assert visible.missing(HOPPER, ()) == f"needs a GPU of Hopper (SM90), {reason}"


def test_hidden_gpus_are_reported_from_absent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    reason = visible.missing(frozenset(Arch), ())
    assert reason is not None
    assert reason.startswith("needs an NVIDIA GPU")
    assert "CUDA_VISIBLE_DEVICES='' names none of this machine's 1" in reason


def test_another_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [L4])
    reason = visible.missing(frozenset({Arch.HOPPER, Arch.BLACKWELL}), ())
    assert reason == "needs a GPU of Hopper (SM90) or Blackwell (SM100), and this machine has NVIDIA L4 (SM89)"


def test_a_second_gpu_that_would_fail_has_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200, L4])
    reason = visible.missing(HOPPER, ())
    assert reason is not None
    assert reason.endswith("this machine has NVIDIA L4 (SM89): leave it out of CUDA_VISIBLE_DEVICES")


def test_a_cpu_build_of_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200])
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "PyTorch is a build without CUDA" in str(visible.missing(HOPPER, ()))


def test_a_missing_package_is_reported_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200])
    monkeypatch.setitem(visible._INSTALL, "absent_package", "attnfuzz[gpu]")
    reason = visible.missing(HOPPER, ("torch", "absent_package"))
    assert reason == "package absent_package is not installed: pip install 'attnfuzz[gpu]'"


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.install(monkeypatch, [H200])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "elsewhere"))
    assert "has no bin/nvcc: install NVIDIA's CUDA toolkit" in str(visible.missing(HOPPER, ()))


def test_looking_for_missing_packages_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, [H200])
    before = set(sys.modules)
    visible.missing(HOPPER, ("flashinfer",))
    assert "flashinfer" not in set(sys.modules) - before


@pytest.mark.slow
def test_a_driver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.install(monkeypatch, [H200])
    hanging = tmp_path / "discovery.py"
    hanging.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(visible, "_found", FOUND)
    monkeypatch.setattr(visible, "_has_driver", lambda: True)
    monkeypatch.setattr(discovery, "__file__", str(hanging))
    monkeypatch.setattr(visible, "_DRIVER_SECONDS", 0.1)
    assert visible.visible() == ()
    assert str(visible.missing(HOPPER, ())).endswith("NVIDIA's driver did not answer within 0.1 s")


@pytest.mark.slow
def test_another_process_asks_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library with one GPU, which only a process with this path finds."""
    fake_nvml.install(monkeypatch)
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "NVMLError_LibraryNotFound = NVMLError\n"
        "nvmlInit = nvmlShutdown = lambda: None\n"
        "nvmlDeviceGetCount = lambda: 1\n"
        "nvmlDeviceGetHandleByIndex = lambda index: index\n"
        "nvmlDeviceGetName, nvmlDeviceGetUUID = lambda _: 'NVIDIA H200', lambda _: 'GPU-1'\n"
        "nvmlDeviceGetCudaComputeCapability = lambda _: (9, 0)\n"
        "nvmlDeviceGetMemoryInfo = lambda _: type('', (), {'total': 80})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(visible, "_found", FOUND)
    monkeypatch.setattr(visible, "_has_driver", lambda: True)
    assert visible.visible() == (visible.Gpu(index=0, name="NVIDIA H200", capability="9.0", memory=80, uuid="GPU-1"),)


def test_no_process_is_started_on_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch)
    monkeypatch.setattr(visible, "_found", FOUND)
    monkeypatch.setattr(visible, "_has_driver", lambda: False)
    monkeypatch.setattr(visible, "output_of", lambda *_, **__: pytest.fail("a process was started"))
    assert str(visible.missing(HOPPER, ())).endswith("it has no NVIDIA driver")
