"""The variables of processes that get a GPU."""

import pytest

from attnfuzz.kernels.cuda.visible import Gpu
from attnfuzz.kernels.gpu import toolchain


@pytest.mark.parametrize(
    ("capability", "given", "expected"),
    [("9.0", "", "sm_90a"), ("10.3", "", "sm_103a"), ("8.9", "", "sm_89"), ("9.0", "sm_100a", "sm_100a")],
)
def test_cute_gets_its_architecture_and_need_not_query_the_driver(
    monkeypatch: pytest.MonkeyPatch, capability: str, given: str, expected: str
) -> None:
    gpu = Gpu(index=0, name="GPU", capability=capability, memory=1, uuid="GPU-00")
    monkeypatch.setattr(toolchain, "visible", lambda: (gpu,))
    monkeypatch.setenv("CUTE_DSL_ARCH", given)
    assert toolchain.environment()["CUTE_DSL_ARCH"] == expected
