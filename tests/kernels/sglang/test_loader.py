"""A release imported without a server: a bare package, stubs, and the report where it does not fit."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import fake_sglang
import pytest
import torch
from fake_releases import replace_pip
from fake_wheels import make_wheel

from attnfuzz.kernels.releases.errors import Moved, ReleaseError
from attnfuzz.kernels.releases.release import Release, release_of
from attnfuzz.kernels.sglang import loader
from attnfuzz.kernels.sglang.adaptations import Inert
from attnfuzz.kernels.sglang.loader import Loaded, as_kind, load
from attnfuzz.kernels.sglang.project import SGLANG

pytestmark = pytest.mark.slow

_MHA = "sglang.srt.layers.attention.trtllm_mha_backend"
_FLASHINFER = "sglang.srt.layers.attention.flashinfer_backend"
_ATTENTION = Path("python", "sglang", "srt", "layers", "attention")


@pytest.fixture(autouse=True)
def process_without_a_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test be a process that has imported nothing of SGLang, and leave none of it behind."""
    before, finders = dict(sys.modules), list(sys.meta_path)
    monkeypatch.setattr(loader, "_loaded", [])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in before:
        if name.partition(".")[0] == "sglang":
            del sys.modules[name]
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return fake_sglang.copy_tree(tmp_path / "checkout")


def _release(checkout: Path) -> Release:
    return release_of(SGLANG, f"sglang@{checkout}")


def _mha(checkout: Path) -> Loaded:
    return as_kind(load(_release(checkout)), "trtllm_mha")


def _append(checkout: Path, module: str, line: str) -> None:
    with (checkout / _ATTENTION / f"{module}.py").open("a") as file:
        file.write(f"\n{line}\n")


def test_backends_are_imported_once_and_the_package_never_begins_a_server(checkout: Path) -> None:
    (checkout / "python" / "sglang" / "__init__.py").write_text("raise RuntimeError('a server would begin here')\n")
    loaded = load(_release(checkout))
    for name in ("trtllm_mha", "trtllm_mla"):
        assert as_kind(loaded, name).backend.__module__ == f"sglang.srt.layers.attention.{name}_backend"
    assert loaded.module("sglang.srt.server_args").ServerArgs
    assert load(_release(checkout)) is loaded


def test_a_release_that_asks_for_the_gpu_while_it_is_imported_does_not_initialize_cuda(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # CUDA's initialization starts threads, also where no GPU is visible: workers could not be forked any more.
    def initialized(*_given: object) -> NoReturn:
        raise AssertionError("CUDA is initialized")

    monkeypatch.setattr(torch, "get_device_module", initialized)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", initialized)
    monkeypatch.setattr(torch.cuda, "is_available", initialized)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA is initialized"))
    triton, runtime = ModuleType("triton"), ModuleType("triton.runtime")
    vars(triton)["runtime"] = runtime
    vars(runtime)["driver"] = SimpleNamespace(_active=None)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    module = checkout / _ATTENTION / "trtllm_mha_backend.py"
    asked = (
        "import torch, triton.runtime",
        "ACCELERATOR = torch.accelerator.current_accelerator(check_available=True)",
        "DEVICE, DRIVER = torch.get_device_module(), triton.runtime.driver._active",
        "try: torch.cuda.current_device()",
        "except Exception: pass",
    )
    module.write_text("\n".join((*asked, module.read_text())))
    answers = load(_release(checkout)).module(_MHA)
    assert answers.ACCELERATOR is None
    assert answers.DEVICE is torch.cpu
    with pytest.raises(RuntimeError, match="0 active drivers"):
        answers.DRIVER.get_current_target()


def test_a_process_has_one_release(checkout: Path, tmp_path: Path) -> None:
    load(_release(checkout))
    other = fake_sglang.copy_tree(tmp_path / "other")
    with pytest.raises(ReleaseError, match=f"this process has sglang@{checkout}: sglang@{other} needs another process"):
        load(_release(other))


def test_a_process_that_has_imported_another_sglang_is_not_used(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", sys)
    with pytest.raises(ReleaseError, match="imported sglang already"):
        load(_release(checkout))


def test_a_stub_replaces_an_unused_module_even_if_it_is_installed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("raise RuntimeError('the real one')\n")
    monkeypatch.syspath_prepend(tmp_path)
    _append(
        checkout,
        "trtllm_mha_backend",
        "from transformers.models.auto import AutoConfig\n"
        "class Config(AutoConfig): pass\n"
        "def table(a: AutoConfig | None, b: 'list[AutoConfig]') -> AutoConfig[int]: return [*AutoConfig]\n"
        "@AutoConfig.register('mine')\n"
        "def registered(): return 1\n",
    )
    mha = load(_release(checkout)).module(_MHA)
    assert issubclass(mha.Config, mha.AutoConfig)
    assert mha.registered() == 1


def test_attributes_read_from_a_stub_are_noted_for_a_listener(checkout: Path) -> None:
    _append(checkout, "trtllm_mha_backend", "import transformers\ndef ask(): return transformers.AutoConfig.small")
    loaded = load(_release(checkout))
    noted: list[str] = []
    loaded.listen(noted.append)
    loaded.module(_MHA).ask()
    assert noted == ["transformers.AutoConfig", "transformers.AutoConfig.small"]
    loaded.listen(None)
    loaded.module(_MHA).ask()
    assert len(noted) == 2


def test_a_module_of_a_stub_has_no_special_names_that_it_was_not_given(checkout: Path) -> None:
    _append(checkout, "trtllm_mha_backend", "import transformers")
    transformers = load(_release(checkout)).module(_MHA).transformers
    assert not hasattr(transformers, "__version__")
    assert not hasattr(transformers.AutoConfig, "__wrapped__")


def test_a_package_that_is_not_installed_says_where_it_is_imported_and_how_to_have_it(checkout: Path) -> None:
    _append(checkout, "trtllm_mha_backend", "import a_package_of_next_year")
    with pytest.raises(ReleaseError) as refused:
        _mha(checkout)
    line = str(refused.value)
    assert "needs a_package_of_next_year (sglang/srt/layers/attention/trtllm_mha_backend.py:" in line
    assert "pip install a_package_of_next_year" in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sglang.srt.layers.nowhere", "needs sglang.srt.layers.nowhere, which the tree lacks"),
        ("def f(:", "layers/attention/trtllm_mha_backend.py:"),
    ],
)
def test_the_failing_line_of_an_import_is_reported_in_one_line(checkout: Path, line: str, sent: str) -> None:
    _append(checkout, "trtllm_mha_backend", line)
    with pytest.raises(ReleaseError) as refused:
        _mha(checkout)
    assert sent in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_tree_that_was_fixed_after_a_failed_import_is_imported(checkout: Path) -> None:
    broken = checkout / "python/sglang/srt/mem_cache/memory_pool.py"
    text = broken.read_text()
    broken.write_text("import transformers, a_package_of_next_year\n")
    with pytest.raises(ReleaseError):
        load(_release(checkout))
    assert not [name for name in sys.modules if name.partition(".")[0] in {"sglang", "transformers"}]
    broken.write_text(text + "\nMENDED = True\n")
    assert load(_release(checkout)).module("sglang.srt.mem_cache.memory_pool").MENDED


def test_a_backend_that_moved_is_reported_and_others_run(checkout: Path) -> None:
    (checkout / _ATTENTION / "trtllm_mla_backend.py").unlink()
    loaded = load(_release(checkout))
    with pytest.raises(Moved, match=r"has no module sglang\.srt\.layers\.attention\.trtllm_mla_backend"):
        as_kind(loaded, "trtllm_mla")
    assert as_kind(loaded, "trtllm_mha").backend


def test_a_change_for_one_backend_is_reverted_for_another(checkout: Path) -> None:
    loaded = load(_release(checkout))
    updater = "FlashInferIndicesUpdaterDecode"
    assert getattr(as_kind(loaded, "trtllm_mha").module(_FLASHINFER), updater) is Inert
    (checkout / _ATTENTION / "torch_native_backend.py").write_text("class TorchNativeAttnBackend: pass\n")
    own = getattr(as_kind(loaded, "torch_native").module(_FLASHINFER), updater)
    assert own.__module__ == _FLASHINFER


def test_a_class_that_moved_is_reported(checkout: Path) -> None:
    file = checkout / _ATTENTION / "trtllm_mha_backend.py"
    file.write_text(file.read_text().replace("class TRTLLMHAAttnBackend", "class TRTLLMAttentionBackend"))
    with pytest.raises(Moved, match=r"has no TRTLLMHAAttnBackend in sglang\.srt\.layers\.attention\.trtllm_mha_b"):
        _mha(checkout)


def test_a_name_that_would_be_given_another_value_and_moved_is_reported(checkout: Path) -> None:
    file = checkout / _ATTENTION / "flashinfer_backend.py"
    file.write_text(file.read_text().replace("class FlashInferIndicesUpdaterDecode", "class PlansDecodes"))
    with pytest.raises(
        Moved, match=r"has no FlashInferIndicesUpdaterDecode in sglang\.srt\.layers\.attention\.flashinf"
    ):
        _mha(checkout)


def test_a_module_that_a_release_has_no_more_is_reported_when_it_is_asked_for(checkout: Path) -> None:
    loaded = load(_release(checkout))
    with pytest.raises(Moved, match=r"has no module sglang\.srt\.somewhere\.else_"):
        loaded.module("sglang.srt.somewhere.else_")


def test_an_edited_copy_of_a_release_is_not_taken_for_it(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    python = checkout / "python"
    sources = {path.relative_to(python).as_posix(): path.read_text() for path in python.rglob("*.py")}
    make_wheel(tmp_path / "wheels", "0.5.99", sources)
    replace_pip(tmp_path / "wheels", monkeypatch)
    release = release_of(SGLANG, "sglang==0.5.99")
    edited = release.root / _ATTENTION.relative_to("python") / "trtllm_mha_backend.py"
    edited.write_text(edited.read_text() + "print('looking')\n")
    with pytest.raises(ReleaseError, match=r"trtllm_mha_backend\.py differs from sglang==0\.5\.99: remove "):
        load(release)
