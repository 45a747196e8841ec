"""Plain cases cover what a backend is asked to run at least, and nothing more."""

import pytest

from attnfuzz.harness.backends.registry import builtin
from attnfuzz.harness.family import family_with
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, Outputs
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.strategies.plain_cases import MOST, plain_cases


def test_each_mode_layout_and_dtype_of_a_function_occurs() -> None:
    can = Capability(layouts=tuple(KvLayout))
    cases = plain_cases(can, "mine")
    assert len(cases) == MOST
    assert {case.steps[0].mode for case in cases} == set(Mode.of_kernels())
    assert {case.geometry.kv_layout for case in cases} == set(KvLayout)
    assert {case.geometry.dtype for case in cases} == {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16}


def test_heads_slots_and_columns_of_the_page_table_are_distinct() -> None:
    for case in plain_cases(Capability(), "mine"):
        geometry = case.geometry
        assert len({1, geometry.kv_heads, geometry.page_size}) == len({1, geometry.kv_heads, geometry.q_heads}) == 3
        assert geometry.page_size < max(each.kv_len for each in case.steps[0].requests) <= 2 * geometry.page_size


def test_each_further_feature_of_a_function_occurs_in_one_case() -> None:
    cases = plain_cases(Capability(windows=True, sinks=True, soft_cap=True, kv_scales=True), "mine")
    geometries = [case.geometry for case in cases]
    assert len(cases) == MOST
    assert [each.window_left for each in geometries if each.window_left >= 0] == [3]
    assert [each.soft_cap for each in geometries if each.soft_cap] == [30.0]
    assert [each.sinks for each in geometries].count(True) == 1
    assert [(case.scales.k, case.scales.v) for case in cases].count((0.5, 2.0)) == 1


def test_a_function_of_one_mode_and_dtype_has_cases_with_other_page_tables() -> None:
    cases = plain_cases(Capability(modes=(Mode.DECODE,), dtypes=(DType.BFLOAT16,)), "mine")
    assert len({(case.geometry.page_size, case.geometry.head_dim_qk) for case in cases}) == len(cases) == 3


def test_rows_that_were_never_written_show() -> None:
    assert {case.outputs for case in plain_cases(Capability(), "mine")} == {Outputs.POISONED}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(builtin()))
def test_a_built_in_backend_has_plain_cases_that_it_supports_in_each_of_its_modes(name: str) -> None:
    can = builtin()[name].capability
    cases = tuple(family_with(can).plain_cases(can, name))
    assert 0 < len(cases) <= MOST
    for case in cases:
        case.validate()
    assert {can.why_not(case) for case in cases} == {None}
    # Compiled modules may be for other numbers of drafts, and steps without requests need no plain case.
    if not getattr(can, "buckets", ()):
        assert {mode for case in cases for mode in case.modes} == set(can.modes) - {"idle"}
