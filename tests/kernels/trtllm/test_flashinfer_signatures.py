"""Every call that a planner makes is one that the installed FlashInfer would take."""

import importlib
import inspect
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from recorder import Launched
from small_cases import drawn, lighter

from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.case import Case


@pytest.fixture(scope="module")
def signatures() -> dict[str, inspect.Signature]:
    """FlashInfer's signature of each entry point that it has."""
    pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")
    return {
        op.name: inspect.signature(getattr(importlib.import_module(op.module), op.name))
        for op in NATIVE.ops()
        if op.module
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "entry_points"),
    [
        ("trtllm_mha", {"trtllm_batch_decode_with_kv_cache", "trtllm_batch_context_with_kv_cache"}),
        ("trtllm_mha_windowed", {"trtllm_batch_decode_with_kv_cache", "trtllm_batch_context_with_kv_cache"}),
        (
            "trtllm_mla",
            {"trtllm_batch_decode_with_kv_cache_mla", "trtllm_ragged_attention_deepseek", "merge_state_in_place"},
        ),
    ],
)
def test_launches_bind_to_the_installed_flashinfer(
    signatures: dict[str, inspect.Signature],
    launches_of: Callable[[Case], list[Launched]],
    backend: str,
    entry_points: set[str],
) -> None:
    if "windowed" in backend and "window_right" not in signatures[NATIVE.context.name].parameters:
        pytest.skip("FlashInfer has windows to the right since 0.7.4")
    bound = set()
    for case in lighter(drawn(backend, 25)):
        # Arguments are copied, which pages without memory can't be.
        whole = replace(case, pages=replace(case.pages, hole=0))
        for launched in launches_of(whole):
            if launched.op.module:
                signatures[launched.op.name].bind(**launched.arguments)
                bound.add(launched.op.name)
    assert bound == entry_points
