"""Attention to caches with tensors of scales, on the native kernels."""

import pytest
from small_cases import drawn_for, lighter

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.verdict.tiers import Task
from attnfuzz.kernels.native import build
from attnfuzz.kernels.trtllm.backends import MHA_NVFP4, MHA_SCALED, TrtllmBackend


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


@pytest.mark.parametrize("backend", [MHA_SCALED, MHA_NVFP4], ids=lambda each: each.name)
def test_drawn_cases_of_every_granularity_pass(backend: TrtllmBackend) -> None:
    can = backend.capability
    found = lighter(drawn_for(can, 30, backend.name, seed=1))
    for case in found:
        verdict = Execution(Task(case=case, backend=""), lambda _: None, backend=backend).run()
        assert not verdict.observations, (case, verdict.observations)
        assert verdict.unsupported is None
    assert {case.scales.granularity for case in found} == set(can.granularities)
    assert {case.scales.blocks for case in found} == set(can.block_scales)
    assert {case.geometry.kv_layout for case in found} == set(can.layouts)
    assert {case.views.kv for case in found} == set(can.kv_views)
