"""What Hypothesis shrinks a case to: what a person would have written."""

import pytest
from shrunk_cases import shrunk

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, Pages, Scales, ValueFamily, Views
from attnfuzz.strategies.cases import cases

CAPABILITY = Capability(
    modes=Mode.of_kernels(),
    graph_modes=tuple(mode for mode in Mode.of_kernels() if mode.speculative),
    fp8_kv=True,
    windows=True,
    sinks=True,
    kv_scales=True,
    padding=True,
)


def test_anything_shrinks_to_one_plain_request() -> None:
    case = shrunk(cases(CAPABILITY, "any"), lambda _: True)
    assert len(case.steps) == 1
    assert len(case.steps[0].requests) == 1
    assert case.steps[0].launch is Launch.EAGER
    assert not case.steps[0].padded
    assert (case.geometry.q_heads, case.geometry.head_dim_qk, case.geometry.page_size) == (1, 8, 1)
    assert (case.pages, case.scales, case.views) == (Pages(), Scales(), Views())
    assert case.values is ValueFamily.NORMAL
    assert case.seed == 0
    assert case.relation is None


@pytest.mark.slow
def test_an_empty_request_beside_a_long_one_shrinks_to_hardly_more_than_that() -> None:
    def fails(case: Case) -> bool:
        return any(
            any(request.kv_len == 0 for request in step.requests)
            and any(request.kv_len > 40 for request in step.requests)
            for step in case.steps
        )

    case = shrunk(cases(CAPABILITY, "any"), fails)
    assert len(case.steps) <= 2
    assert len(case.steps[-1].requests) <= 3


@pytest.mark.slow
def test_a_replay_shrinks_to_one_capture_and_one_replay() -> None:
    case = shrunk(cases(CAPABILITY, "any"), lambda case: any(step.launch is Launch.REPLAY for step in case.steps))
    assert [step.launch for step in case.steps] == [Launch.CAPTURE, Launch.REPLAY]
    assert len(case.steps[1].requests) == 1
