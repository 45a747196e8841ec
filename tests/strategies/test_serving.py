"""The limits of a server that schedules the requests of a case itself."""

from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Serving
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
