"""Names of backends that commands are given."""

import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.cli.given import all_compiled, compiled_backends
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.interface.toolchain import BUILT

UNCOMPILED = ("fa2_paged", "mla_fa3")


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No module is compiled, and compiled ones are asked for."""
    monkeypatch.setattr(build_record, "read", lambda _: {})
    monkeypatch.setenv(BUILT, "1")


def test_backends_without_a_compiled_module_are_left_out_and_named_on_one_line() -> None:
    lines: list[str] = []
    assert compiled_backends(["trtllm_mha", *UNCOMPILED, "sdpa_flash"], lines.append) == ("trtllm_mha", "sdpa_flash")
    assert lines == [
        "Skipped: no module is compiled for fa2_paged, mla_fa3; attnfuzz build --backend NAME compiles them."
    ]


def test_if_no_backend_is_left_the_command_line_is_wrong() -> None:
    with pytest.raises(BadInput, match="no module is compiled for fa2_paged, mla_fa3"):
        compiled_backends(UNCOMPILED, print)


def test_all_backends_stay_if_compiled_modules_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BUILT)
    assert compiled_backends(UNCOMPILED, pytest.fail) == UNCOMPILED


def test_all_compiled_backends_are_those_on_a_gpu_that_need_no_module_or_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(resolve("fa2_paged")), "missing", lambda _: None)
    monkeypatch.setattr(type(resolve("sdpa_flash")), "missing", lambda _: None)
    found = all_compiled()
    assert "sdpa_flash" in found
    assert not {"trtllm_mha", *UNCOMPILED}.intersection(found)


def test_without_any_compiled_backend_the_message_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.harness.cli.given.lacks_modules", lambda _: True)
    with pytest.raises(BadInput, match="attnfuzz build --quick"):
        all_compiled()
