"""The limits of a server that schedules the requests of a case itself, and the queries of one that quantises."""

from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, ServedQueries, Serving
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.validity import validate
from attnfuzz.strategies.cases import cases

Draw = Callable[[SearchStrategy[Case], int], list[Case]]
MODES = (Mode.DECODE, Mode.EXTEND)


def test_a_backend_that_schedules_gets_limits_and_no_relation(draw: Draw) -> None:
    can = Capability(modes=MODES, schedules=True)
    drawn = draw(cases(can, "scheduling"), 60)
    assert (
        {bool(case.serving.budget) for case in drawn}
        == {bool(case.serving.shortage) for case in drawn}
        == {True, False}
    )
    assert {case.relation for case in drawn} == {None}
    assert {can.why_not(case) for case in drawn} == {None}


def test_other_backends_get_none(draw: Draw) -> None:
    drawn = draw(cases(Capability(modes=MODES), "planned"), 30)
    assert {case.serving for case in drawn} == {Serving()}
    assert {case.queries for case in drawn} == {ServedQueries()}


def test_a_server_has_a_scale_of_queries_and_keeps_them_where_its_cache_is_exact(draw: Draw) -> None:
    can = Capability(modes=MODES, fp8_kv=True, kv_scales=True, query_scales=True, kept_queries=True)
    drawn = draw(cases(can, "quantising"), 200)
    for case in drawn:
        validate(case)
        assert can.why_not(case) is None
    quantised = [case.geometry.kv_dtype is DType.FLOAT8_E4M3 for case in drawn]
    kinds = {(case.queries.scale == 1, case.queries.kept) for case, fp8 in zip(drawn, quantised, strict=True) if fp8}
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}
    assert {case.queries.kept for case, fp8 in zip(drawn, quantised, strict=True) if not fp8} == {False}
