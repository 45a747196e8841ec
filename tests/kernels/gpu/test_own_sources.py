"""The CUDA kernels of this project compile, although running them takes a GPU."""

import subprocess
from pathlib import Path

import pytest
import tvm_ffi.libinfo

from attnfuzz.kernels.defects import stray
from attnfuzz.kernels.gpu import guards, states, toolkit
from attnfuzz.kernels.gpu.any_gpu import ops as any_gpu


@pytest.mark.slow
@pytest.mark.parametrize(
    "phases",
    [
        pytest.param("--cubin", id="device"),
        pytest.param("--compile", id="all", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "source", [any_gpu.KERNEL, states.FIXUP_SOURCE, guards.SOURCE, stray.SOURCE], ids=lambda source: source.stem
)
def test_a_source_compiles_without_warnings(source: Path, phases: str, tmp_path: Path) -> None:
    """For the device alone, which takes a third of the time: warnings of nvcc's frontend, of host code too, and ptxas.

    What g++ alone warns of, such as a deprecated function, shows when all is compiled.
    """
    reason = toolkit.missing()
    if reason is not None:
        pytest.skip(reason)
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    options = ["-std=c++17", "-Werror=all-warnings", "-arch=sm_90", *(f"-I{path}" for path in includes)]
    command = [str(toolkit.nvcc()), *options, phases, str(source), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
