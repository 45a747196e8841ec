"""Names of backends that commands are given."""

import pytest

from attnfuzz.harness.cli.given import compiled_backends
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
