"""Loading what FlashInfer compiled before it is launched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm_ffi

from attnfuzz.kernels.gpu import build_record, modules
from attnfuzz.kernels.gpu.build_record import Built, Module


@pytest.fixture(autouse=True)
def _nothing_is_loaded() -> Iterator[None]:
    modules._library.cache_clear()
    yield
    modules._library.cache_clear()


def module(name: str) -> Module:
    return Module(name, lambda: None)


def test_compiled_modules_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    known = {
        "there": Built(library="/cache/there.so", base="/"),
        "rejected": Built(reason="static assertion failed", lasting=True, base="/"),
        "gone": Built(library="/cache/gone.so", base="/"),
    }

    def load_module(path: str) -> None:
        loaded.append(path)
        if path == "/cache/gone.so":
            raise OSError(path)

    monkeypatch.setattr(build_record, "read", lambda _: known)
    monkeypatch.setattr(tvm_ffi, "load_module", load_module)
    for _ in range(2):
        modules.load(map(module, ("there", "rejected", "never compiled")))
    assert loaded == ["/cache/there.so"]
    # What can't be loaded is left to whoever launches it.
    modules.load([module("gone"), module("there")])
    assert loaded == ["/cache/there.so", "/cache/gone.so"]


def test_flashinfer_does_not_rebuild_cached_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = pytest.importorskip("flashinfer.jit.env", reason="asks the installed FlashInfer")
    core = pytest.importorskip("flashinfer.jit.core")
    monkeypatch.setattr(environment, "FLASHINFER_AOT_DIR", tmp_path / "nothing")
    monkeypatch.setattr(environment, "FLASHINFER_JIT_DIR", tmp_path)
    monkeypatch.setattr(core.JitSpecNvcc, "build", lambda self: pytest.fail(f"{self.name} is built"))
    monkeypatch.setattr(core.tvm_ffi, "load_module", lambda path: f"loaded from {path}")
    library = tmp_path / "some_kernel" / "some_kernel.so"
    library.parent.mkdir()
    library.touch()
    modules.trust_the_cache()
    spec = core.JitSpecNvcc("some_kernel", [], None, None, None, None)
    assert spec.build_and_load() == f"loaded from {library}"


def test_modules_compiled_ahead_of_time_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = pytest.importorskip("flashinfer.jit.env", reason="asks the installed FlashInfer")
    monkeypatch.setattr(environment, "FLASHINFER_AOT_DIR", tmp_path)
    modules.trust_the_cache()
    assert tmp_path == environment.FLASHINFER_AOT_DIR
