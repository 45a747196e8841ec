"""Keys and values that are drawn on the GPU, and judged there: the same numbers, and the same verdicts."""

import pytest
import torch
from built_backends import WITHOUT_BUGS, skip_unless_built
from small_cases import drawn

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface import transfers
from attnfuzz.reference.attention import attend
from attnfuzz.reference.case import Case, Mode, Request, Step, ValueFamily
from attnfuzz.reference.chance import TokenRun
from attnfuzz.reference.problem import Problem
from attnfuzz.reference.row import key_marks, row_weights
from attnfuzz.reference.values import Operand, draw_runs

pytestmark = pytest.mark.gpu

CASES = 4


@pytest.mark.parametrize("role", Operand)
@pytest.mark.parametrize("family", ValueFamily)
def test_values_are_the_same_bits_on_every_device(family: ValueFamily, role: Operand) -> None:
    runs = [TokenRun(3, 1000), TokenRun(7, 0), TokenRun(5, 17)]
    here, there = (
        draw_runs(family, role, runs, 3, 40, seed=11, device=torch.device(device)) for device in ("cpu", "cuda")
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        assert same_bits(there.to(dtype).cpu(), here.to(dtype))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors hold the same bits, but for those of NaN: a GPU converts each NaN to another one."""
    zeros = (torch.where(each.isnan(), torch.zeros_like(each), each) for each in (one, other))
    bits = (each.view(torch.uint8) for each in zeros)
    return torch.equal(*bits) and torch.equal(one.isnan(), other.isnan())


@pytest.mark.parametrize("window", [-1, 5])
def test_the_answer_of_keys_on_a_gpu_is_that_of_keys_on_the_host(window: int) -> None:
    q_lens, kv_lens = (3, 1, 0, 2), (700, 1, 4, 0)
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(size, heads, 16, generator=generator) for size, heads in ((6, 4), (705, 2), (705, 2))
    )
    sinks = torch.randn(4, generator=generator)
    here, there = (
        Problem(query, key.to(device), value.to(device), q_lens, kv_lens, 0.25, window_left=window, sinks=sinks)
        for device in ("cpu", "cuda")
    )
    expected, found = attend(here, moments=True), attend(there, moments=True)
    assert expected.moments is not None
    assert found.moments is not None
    pairs = [(expected.out, found.out), (expected.lse, found.lse)]
    pairs += zip(vars(expected.moments).values(), vars(found.moments).values(), strict=True)
    for wanted, given in pairs:
        torch.testing.assert_close(given, wanted, rtol=1e-11, atol=1e-13)
    assert torch.equal(found.visible, expected.visible)
    for row in ((2, 3), (3, 0)):
        torch.testing.assert_close(row_weights(there, *row), row_weights(here, *row), rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(key_marks(there, *row), key_marks(here, *row), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("backend", WITHOUT_BUGS)
def test_verdicts_are_the_same_wherever_keys_are_drawn(
    backend: str, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_built(backend)
    # What passes in a worker ends no process.
    verdicts = ((case, runner.verdict(case)) for case in drawn(backend, 40))
    passing = [(case, verdict) for case, verdict in verdicts if verdict.rows and not verdict.observations][:CASES]
    if not passing:
        pytest.skip(f"no drawn case of {backend} passes")
    monkeypatch.setattr(transfers, "STAYS", 0)
    for case, verdict in passing:
        again = Execution(Task(case=case, backend=backend), lambda _: None).run()
        assert again.observations == ()
        assert again.rows == verdict.rows


def test_a_large_case_is_judged(runner: Runner) -> None:
    skip_unless_built("fa2_paged")
    small = next(case for case in drawn("fa2_paged", 40) if case.steps[0].mode is Mode.DECODE)
    requests = tuple(Request(slot, 1, 9000 + slot) for slot in range(24))
    step = Step(mode=Mode.DECODE, requests=requests, padded_tokens=24, tokens_per_request=1)
    case = Case(backend="fa2_paged", geometry=small.geometry, steps=(step,), seed=small.seed)
    verdict = runner.verdict(case)
    assert verdict.failures == ()
    assert verdict.rows == 24 * case.geometry.q_heads
