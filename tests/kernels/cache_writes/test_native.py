"""The native writers: right in drawn cases of everything that they support."""

import pytest
from msgspec.structs import replace
from small_cases import HEADS, LATENTS, drawn_for, lighter, passed, step

from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS, NativeWriter
from attnfuzz.kernels.native import build
from attnfuzz.reference.case import Case, Granularity, KvView, Launch, Mode, PaddedSlot, Pages, Scales, Views
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.writes import rotary_shares
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.rope import Rope

pytestmark = pytest.mark.slow
"""Many cases are drawn, and run."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


@pytest.mark.parametrize("writer", NATIVE_WRITERS, ids=lambda writer: writer.name)
def test_a_native_writer_passes_drawn_cases_of_all_that_it_supports(writer: NativeWriter) -> None:
    can = writer.capability
    found = lighter(drawn_for(can, 25, seed=1))
    for case in found:
        passed(case, writer)
    assert {case.geometry.kv_layout for case in found} == set(can.layouts)
    assert {case.views.query for case in found} == set(can.query_views)
    assert any(case.views.value_strides for case in found) is can.value_strides
    assert any(each.launch is Launch.REPLAY for case in found for each in case.steps) is bool(can.graph_modes)
    assert any(each.padded for case in found for each in case.steps) is can.padding
    assert {case.rope.share for case in found if case.rope} == set(rotary_shares(can))
    assert not can.fp8_kv or any(case.geometry.kv_dtype is DType.FLOAT8_E4M3 for case in found)


@pytest.mark.parametrize("writer", NATIVE_WRITERS, ids=lambda writer: writer.name)
def test_a_native_writer_reaches_pages_beyond_2_to_the_31_elements(writer: NativeWriter) -> None:
    can = writer.capability
    granularity = can.granularities[0]
    geometry = LATENTS if can.latent else HEADS
    if granularity is Granularity.BLOCK:
        geometry = replace(geometry, kv_dtype=DType.FLOAT4_E2M1, head_dim_qk=64, head_dim_vo=64)
    elif granularity is not Granularity.TENSOR:
        geometry = replace(geometry, kv_dtype=DType.FLOAT8_E4M3)
    case = Case(
        backend="",
        geometry=geometry,
        steps=(step(Mode.EXTEND, (3, 7), (2, 2)),),
        scales=Scales(granularity=granularity, blocks=can.block_scales[0]),
        pages=Pages(hole=1 << 24),
        padded_slot=can.padded_slots[0],
        views=Views(kv=can.kv_views[0]),
        rope=Rope() if can.rotary else None,
    )
    assert can.why_not(case) is None
    passed(case, writer)


def test_each_library_has_its_convention_of_padding_and_pools() -> None:
    can = {writer.name: writer.capability for writer in NATIVE_WRITERS}
    assert can["native:reshape_and_cache"].padded_slots == (PaddedSlot.NOWHERE,)
    assert can["native:append"].padded_slots == (PaddedSlot.DUMMY,)
    assert can["native:store_cache"].padded_slots == (PaddedSlot.DUMMY, PaddedSlot.RESERVED)
    assert can["native:set_mla"].padded_slots == (PaddedSlot.DUMMY, PaddedSlot.RESERVED)
    assert can["native:store_cache"].kv_views == (KvView.TOKEN_MAJOR,)
    assert can["native:append"].layouts == tuple(KvLayout)
    assert not can["native:append_mla"].fp8_kv
