"""The TRT-LLM sessions of either architecture, judged on the CPU on what servers may ask of them."""

import pytest

pytest.importorskip("flashinfer", reason="binds to the installed FlashInfer")
from repetition import examples
from small_cases import drawn, lighter, run
from trtllm_on_cpu import named

from attnfuzz.reference.case import Case, Mode

SINCE_0_7_4 = (
    "has no argument length_aware_schedule",
    "has no argument window_right",
    "has no argument variable_window_token_starts, variable_window_token_ends",
)
"""The reasons of an older FlashInfer."""


@pytest.mark.slow
@examples(30, 80)
@pytest.mark.parametrize(
    "backend",
    ["HOPPER_MHA", "HOPPER_MHA_AS_SERVED", "HOPPER_MLA", "BLACKWELL_MHA", "BLACKWELL_MHA_WINDOWED", "BLACKWELL_MLA"],
)
def test_drawn_cases_pass(backend: str, count: int) -> None:
    cases = drawn(named(backend), count)
    chosen = lighter(cases)
    for mode in Mode.of_kernels():
        if not any(mode in modes_of(case) for case in chosen):
            chosen.append(next(case for case in cases if mode in modes_of(case)))
    for case in chosen:
        verdict = run(case)
        # A form of which nothing is said may be refused, also in a graph, which can't be captured plainly then.
        reason = verdict.unsupported
        lacking = reason is not None and reason.endswith(SINCE_0_7_4)
        assert reason is None or reason.startswith("a graph ") or lacking
        assert verdict.observations == ()


def modes_of(case: Case) -> set[Mode]:
    return {step.mode for step in case.steps}
