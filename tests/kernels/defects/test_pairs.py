"""Two defects in one backend: both are in it, at whatever layer each is planted."""

import pytest
from msgspec.structs import replace
from small_cases import HEADS, run, step

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.defects.catalogue import pair
from attnfuzz.reference.case import Case, Mode, Scales

IN_PLACE = "trtllm_mha+query_scaled_in_place"
CASE = Case(
    backend=IN_PLACE,
    geometry=replace(HEADS, window_left=2, sinks=True),
    steps=(step(Mode.TARGET_VERIFY, (2, 9), stride=2),),
    scales=Scales(softmax=0.37),
)


@pytest.mark.parametrize("other", ["sink_missing_from_lse", "window_dropped_in_verify", "result_left_in_query"])
def test_a_pair_fails_in_both_ways(other: str) -> None:
    name = f"{IN_PLACE}+{other}"
    assert pair(name) is not None
    alone = {each.kind for each in run(CASE, f"trtllm_mha+{other}").failures}
    both = {each.kind for each in run(CASE, name).failures}
    assert alone
    assert both >= {Kind.INPUT_MUTATED}
    assert both >= alone or Kind.INPUT_MUTATED in alone


def test_defects_in_one_part_of_a_session_are_no_pair() -> None:
    assert pair("trtllm_mha+query_scaled_in_place+no_such_defect") is None
