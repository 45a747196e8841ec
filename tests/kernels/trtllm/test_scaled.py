"""Attention to caches with tensors of scales, on the native kernels."""

from itertools import product

import pytest
from msgspec.structs import replace
from small_cases import HEADS, drawn_for, lighter, step

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.tiers import Task
from attnfuzz.kernels.native import build
from attnfuzz.kernels.trtllm.backends import MHA_NVFP4, MHA_SCALED, TrtllmBackend
from attnfuzz.reference.case import BlockScales, Case, Granularity, KvView, Mode, Scales, Views
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


def run(case: Case, backend: TrtllmBackend = MHA_SCALED) -> Verdict:
    return Execution(Task(case=case, backend=""), lambda _: None, backend=backend).run()


@pytest.mark.parametrize("backend", [MHA_SCALED, MHA_NVFP4], ids=lambda each: each.name)
def test_drawn_cases_of_every_granularity_pass(backend: TrtllmBackend) -> None:
    found = lighter(drawn_for(backend.capability, 30, backend.name, seed=1))
    for case in found:
        verdict = run(case, backend)
        assert not verdict.observations, (case, verdict.observations)
        assert verdict.unsupported is None
    assert {case.scales.granularity for case in found} == set(backend.capability.granularities)
    assert {case.scales.blocks for case in found} == set(backend.capability.block_scales)


@pytest.mark.parametrize(
    ("granularity", "layout", "view", "mode"),
    list(
        product(
            (Granularity.HEAD, Granularity.TOKEN_HEAD), KvLayout, KvView, (Mode.DECODE, Mode.TARGET_VERIFY, Mode.EXTEND)
        )
    ),
)
def test_scales_are_read_in_each_layout_of_the_cache(
    granularity: Granularity, layout: KvLayout, view: KvView, mode: Mode
) -> None:
    q_len = 1 if mode is Mode.DECODE else 2
    case = Case(
        backend="",
        geometry=replace(HEADS, kv_dtype=DType.FLOAT8_E4M3, kv_layout=layout),
        steps=(step(mode, (q_len, 9), (q_len, 6), stride=q_len if mode is Mode.TARGET_VERIFY else 0),),
        views=Views(kv=view),
        scales=Scales(granularity=granularity),
    )
    assert MHA_SCALED.capability.why_not(case) is None
    assert not run(case).observations


@pytest.mark.parametrize(("layout", "view", "blocks"), list(product(KvLayout, KvView, BlockScales)))
def test_scales_of_blocks_are_read_in_both_layouts(layout: KvLayout, view: KvView, blocks: BlockScales) -> None:
    case = Case(
        backend="",
        geometry=replace(HEADS, kv_dtype=DType.FLOAT4_E2M1, head_dim_qk=64, head_dim_vo=64, kv_layout=layout),
        steps=(step(Mode.DECODE, (1, 9), (1, 6)),),
        views=Views(kv=view),
        scales=Scales(k=0.5, v=1.7, granularity=Granularity.BLOCK, blocks=blocks),
    )
    assert MHA_NVFP4.capability.why_not(case) is None
    assert not run(case, MHA_NVFP4).observations
