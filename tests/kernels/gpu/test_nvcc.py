"""Compiling CUDA kernels of this project: the cache, and what is missing. No compiler is run."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tvm_ffi.cpp

from attnfuzz.kernels.building.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.cuda import guards, nvcc, visible


class Compiler:
    """In the place of tvm_ffi's build; `builds` are the architectures that it was asked for, `files` the last ones."""

    def __init__(self) -> None:
        self.builds: list[str] = []
        self.files: list[str] = []
        self.refuses = ""

    def build(
        self, name: str, *, cuda_files: Sequence[str], cpp_files: Sequence[str], backend: str, build_directory: str
    ) -> str:
        assert backend == "cuda"
        assert all(Path(file).exists() for file in (*cuda_files, *cpp_files))
        self.files = [Path(file).name for file in (*cuda_files, *cpp_files)]
        self.builds.append(os.environ["TVM_FFI_CUDA_ARCH_LIST"])
        if self.refuses:
            raise RuntimeError(self.refuses)
        library = Path(build_directory) / f"{name}.so"
        library.touch()
        return str(library)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A machine with nvcc and one Hopper GPU, and an empty cache."""
    binaries = tmp_path / "toolkit" / "bin"
    binaries.mkdir(parents=True)
    _say(binaries / "nvcc", "release 13.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TVM_FFI_CUDA_ARCH_LIST", raising=False)
    _see(monkeypatch, "9.0")
    compiler = Compiler()
    monkeypatch.setattr(tvm_ffi.cpp, "build", compiler.build)
    nvcc._version.cache_clear()
    return compiler


def _say(command: Path, text: str) -> None:
    command.write_text(f"#!/bin/sh\necho {text}\n")
    command.chmod(0o755)


def _see(monkeypatch: pytest.MonkeyPatch, *capabilities: str) -> None:
    gpus: tuple[Any, ...] = tuple(SimpleNamespace(capability=capability) for capability in capabilities)
    monkeypatch.setattr(visible, "visible", lambda: gpus)


@pytest.mark.slow
def test_a_kernel_is_compiled_once_for_the_visible_gpus(compiler: Compiler) -> None:
    sent: list[str] = []
    library = nvcc.build([guards.SOURCE], progress=sent.append)
    assert library.name.startswith("attnfuzz_guards-")
    assert sent[0].startswith("compiling guards.cu for SM 9.0 with ")
    assert nvcc.build([guards.SOURCE], progress=sent.append) == library
    assert compiler.builds == ["9.0"]
    assert len(sent) == 2


@pytest.mark.slow
def test_other_architectures_files_and_compilers_are_other_libraries(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "guards.cu"
    other.write_text("// nothing")
    libraries = [nvcc.build([guards.SOURCE]), nvcc.build([other]), nvcc.build([guards.SOURCE], archs=["9.0", "10.0a"])]
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0")
    libraries.append(nvcc.build([guards.SOURCE]))
    _say(tmp_path / "toolkit" / "bin" / "nvcc", "release 13.1")
    nvcc._version.cache_clear()
    libraries.append(nvcc.build([guards.SOURCE]))
    assert len(set(libraries)) == 5
    assert compiler.builds == ["9.0", "9.0", "9.0 10.0a", "8.0", "8.0"]


@pytest.mark.slow
def test_headers_are_not_compiled_and_a_change_of_one_rebuilds_the_library(compiler: Compiler, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("kernel.cu", "exports.cpp", "views.h")]
    for file in files:
        file.touch()
    library = nvcc.build(files)
    assert compiler.files == ["kernel.cu", "exports.cpp"]
    files[-1].write_text("#pragma once")
    assert nvcc.build(files) != library


@pytest.mark.slow
def test_gpus_of_several_kinds_share_a_library(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    _see(monkeypatch, "9.0", "10.0", "9.0")
    nvcc.build([guards.SOURCE])
    assert compiler.builds == ["10.0 9.0"]


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_without_a_gpu_the_architectures_have_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _see(monkeypatch)
    with pytest.raises(NoCompiler, match="no GPU is visible to compile for: set TVM_FFI_CUDA_ARCH_LIST"):
        nvcc.build([guards.SOURCE])
    nvcc.build([guards.SOURCE], archs=["9.0"])


@pytest.mark.usefixtures("compiler")
def test_a_toolkit_without_nvcc_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(NoCompiler, match=rf"CUDA_HOME is {tmp_path}, which has no bin/nvcc: install NVIDIA's CUDA"):
        nvcc.build([guards.SOURCE])


@pytest.mark.slow
def test_errors_of_nvcc_are_shown(compiler: Compiler) -> None:
    compiler.refuses = "[1/2] nvcc ...\nguards.cu(3): error: no such thing\nninja: stopped"
    refused = r"could not compile guards\.cu for SM 9\.0:\nguards\.cu\(3\): error: no such thing"
    with pytest.raises(BuildFailed, match=refused):
        nvcc.build([guards.SOURCE])
    assert os.environ.get("TVM_FFI_CUDA_ARCH_LIST") is None
