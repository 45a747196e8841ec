"""The CUDA kernels of this project compile, although running them takes a GPU."""

import subprocess
from pathlib import Path

import pytest
import tvm_ffi.libinfo

from attnfuzz.kernels.cuda import guards, hazards, stray, toolkit
from attnfuzz.kernels.gpu import states
from attnfuzz.kernels.gpu.any_gpu import ops as any_gpu

SOURCES = (any_gpu.KERNEL, states.FIXUP_SOURCE, guards.SOURCE, hazards.SOURCE, stray.SOURCE)


def compile_it(source: Path, phases: str) -> None:
    """Run phases of nvcc on a source, where there is one."""
    reason = toolkit.missing()
    if reason is not None:
        pytest.skip(reason)
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    options = ["-std=c++17", "-Werror=all-warnings", "-arch=sm_90", *(f"-I{path}" for path in includes)]
    command = [str(toolkit.nvcc()), *options, phases, str(source), "-o", str(source.with_name("kernel.o"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_all_sources_compile_for_the_device_without_warnings(tmp_path: Path) -> None:
    """For the device alone: warnings of nvcc's frontend, of host code too, and of ptxas.

    As one source, since the libraries' headers take most of the time. Each has a namespace of its own in it.
    """
    together = tmp_path / "together.cu"
    together.write_text(
        "".join(
            f'#define attnfuzz attnfuzz_{index}\n#include "{source}"\n#undef attnfuzz\n'
            for index, source in enumerate(SOURCES)
        )
    )
    compile_it(together, "--cubin")


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_compiles_alone_without_warnings(source: Path, tmp_path: Path) -> None:
    """What g++ alone warns of, such as a deprecated function, shows when all is compiled."""
    alone = tmp_path / "alone.cu"
    alone.write_text(f'#include "{source}"\n')
    compile_it(alone, "--compile")
