"""Building the native kernels: the cache, several processes at once, and what goes wrong."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from attnfuzz.kernels.building.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.native import build

# Exports by hand what TVM_FFI_DLL_EXPORT_TYPED_FUNC would, whose headers take seconds to compile.
SOURCE = """
#include <tvm/ffi/c_api.h>
extern "C" int __tvm_ffi_answer(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 42;
#ifdef ATTNFUZZ_DEFECTS
  result->v_int64 = -1;
#endif
  return 0;
}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A source that stands in for the kernels, since it compiles faster."""
    path = tmp_path / "answer.cpp"
    path.write_text(SOURCE)
    return path


def start(cache: Path, source: Path, load: str = "load") -> "subprocess.Popen[str]":
    """A process that builds `source` in `cache` and prints its messages, then the answer."""
    script = f"""
        import sys
        # Of which tvm_ffi imports what there is.
        sys.modules["torch"] = None
        from pathlib import Path
        from attnfuzz.kernels.native import build
        build.sources = lambda: (Path({str(source)!r}),)
        print("answer", build.{load}(print).answer())
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "ATTNFUZZ_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )


def output(process: "subprocess.Popen[str]") -> list[str]:
    return process.communicate(timeout=120)[0].splitlines()


@pytest.mark.long
def test_processes_that_start_together_compile_once(tmp_path: Path, tiny: Path) -> None:
    processes = [start(tmp_path / "cache", tiny) for _ in range(3)]
    outputs = [output(process) for process in processes]
    assert [lines[-1] for lines in outputs] == ["answer 42"] * 3
    assert sum("compiling" in line for lines in outputs for line in lines) == 1
    assert output(start(tmp_path / "cache", tiny)) == ["answer 42"]
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".lock", ".so"]


@pytest.mark.slow
def test_a_change_of_the_sources_compiles_again(tmp_path: Path, tiny: Path) -> None:
    output(start(tmp_path / "cache", tiny))
    tiny.write_text(SOURCE.replace("42", "43"))
    assert output(start(tmp_path / "cache", tiny))[-1] == "answer 43"


@pytest.mark.long
def test_the_library_with_defects_is_built_beside_the_other_when_it_is_asked_for(tmp_path: Path, tiny: Path) -> None:
    cache = tmp_path / "cache"
    assert output(start(cache, tiny))[-1] == "answer 42"
    assert len(list(cache.glob("*.so"))) == 1
    lines = output(start(cache, tiny, load="load_with_defects"))
    assert "planted defects" in lines[0]
    assert lines[-1] == "answer -1"
    assert len(list(cache.glob("*.so"))) == 2
    assert output(start(cache, tiny, load="load_with_defects")) == ["answer -1"]
    assert output(start(cache, tiny)) == ["answer 42"]


@pytest.fixture
def unbuilt(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Kernels that were neither built nor loaded by this process: for builds that fail."""
    monkeypatch.setattr(build._Loaded, "modules", {})
    monkeypatch.setattr(build, "sources", lambda: (tiny,))
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    return monkeypatch


def test_a_missing_compiler_is_reported_in_one_line_with_the_package(
    tmp_path: Path, unbuilt: pytest.MonkeyPatch
) -> None:
    unbuilt.setenv("PATH", str(tmp_path))
    unbuilt.setenv("CXX", "")
    with pytest.raises(NoCompiler, match=r"^no C\+\+ compiler .*install g\+\+.*$"):
        build.load()


def test_a_cxx_that_is_no_command_is_named(unbuilt: pytest.MonkeyPatch) -> None:
    unbuilt.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompiler, match="no-such-compiler"):
        build.load()


@pytest.mark.slow
@pytest.mark.usefixtures("unbuilt")
def test_a_compiler_error_is_shown_without_its_commands(tmp_path: Path, tiny: Path) -> None:
    tiny.write_text("int answer() { return nothing_of_that_name; }")
    with pytest.raises(BuildFailed, match="nothing_of_that_name") as failed:
        build.load()
    assert len(str(failed.value).splitlines()) < 25
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, unbuilt: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    unbuilt.setenv("ATTNFUZZ_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BuildFailed, match=r"^cannot write compiled kernels to .*ATTNFUZZ_CACHE.*$"):
        build.load()


def test_a_module_is_loaded_once_in_a_process() -> None:
    assert build.load() is build.load()


def test_the_sources_are_package_data_beside_the_module() -> None:
    names = {path.name for path in build.sources()}
    assert {"exports.cpp", "split_kv.cpp", "elements.h"} <= names
