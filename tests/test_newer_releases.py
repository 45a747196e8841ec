"""The comparison of releases with backends: which functions and arguments of a wheel no backend binds."""

import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "newer_releases.py"
PREFILL = "flashinfer/prefill.py"
SOURCE = """
@flashinfer_api(trace=None)
def trtllm_fmha_v2_prefill(qkv, *, input_layout, brand_new=None): ...
@flashinfer_api
def attend_brand_new(q): ...
def helper(q): ...
class BatchPrefillWithPagedKVCacheWrapper:
    def plan(self, qo_indptr): ...
    def plan(self, qo_indptr, brand_new): ...
    def forward(self, q): ...
"""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_unbound_functions_and_new_arguments_of_a_wheel_are_listed(script: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")
    wheel = tmp_path / "flashinfer_python-9.9.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr(PREFILL, SOURCE)
        files.writestr("flashinfer/gemm.py", "@flashinfer_api\ndef mm(): ...")
    api = script["api_of"](wheel)
    assert api == {
        (PREFILL, "trtllm_fmha_v2_prefill"): ("qkv", "input_layout", "brand_new"),
        (PREFILL, "attend_brand_new"): ("q",),
        (PREFILL, "BatchPrefillWithPagedKVCacheWrapper.plan"): ("self", "qo_indptr", "brand_new"),
    }
    page = script["page"]("9.9.0", api, {"torch": ("1.0", "2.0"), "ray": ("1.0", "1.0")}).splitlines()
    assert [line for line in page if "`brand_new`" in line or "`attend_brand_new`" in line or "torch" in line] == [
        "| torch | 1.0 | 2.0 |",
        f"| `attend_brand_new` | {PREFILL} |",
        "| `trtllm_fmha_v2_prefill` | `brand_new` |",
        "| `BatchPrefillWithPagedKVCacheWrapper.plan` | `brand_new` |",
    ]


def test_the_pins_of_watched_packages_are_read(script: dict[str, Any]) -> None:
    assert {"flashinfer-python", "torch"} <= script["pins"]().keys() <= set(script["WATCHED"])
