"""A script judges by the tier that failed: it finds an error that only this tier sees, and none without it."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_cases import GEOMETRY, calls_of
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.export import Exporter, Target, judging
from attnfuzz.harness.export.limits import CommonError, LimitForm, ScriptLimits, limits_of
from attnfuzz.harness.export.script import render_script
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.native import build, ops
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case, Mode, Request, Step, ValueFamily
from attnfuzz.reference.dtypes import DType

OP = "trtllm_batch_context_with_kv_cache"
ROW = RowAddress(0, 5, 1)
CASE = Case(
    backend="trtllm_mha",
    geometry=replace(GEOMETRY, head_dim_qk=64, head_dim_vo=64, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32),
    steps=(Step(mode=Mode.EXTEND, requests=(Request(0, 24, 40),), padded_tokens=24),),
)
ZEROS = replace(CASE, values=ValueFamily.ZEROS)


COARSE = "trtllm_mha+output_scale_in_bf16"
"""A backend whose noise model has rounded weights: most of its errors are independent."""


@pytest.fixture(scope="module")
def calls(runner: Runner) -> CallCase:
    return replace(calls_of(runner, CASE), backend=COARSE)


@pytest.fixture(scope="module")
def equal_weights(runner: Runner) -> CallCase:
    return calls_of(runner, ZEROS)


def seen(tier: Tier, place: str = "out", row: RowAddress | None = ROW) -> Observation:
    kind = Kind.LSE_MISMATCH if place == "lse" else Kind.OUTPUT_MISMATCH
    return Observation(kind=kind, place=place, message="wrong", step=0, tier=tier, row=row)


def limits(calls: CallCase, failure: Observation) -> ScriptLimits:
    (found,) = limits_of(calls, resolve(calls.backend), failure)
    return found


Mistake = Callable[[torch.Tensor, torch.Tensor], None]
"""Changes an output [tokens, heads, dim] and its LSE [tokens, heads]."""


def run(calls: CallCase, failure: Observation, mistake: Mistake) -> tuple[bool, str]:
    """Whether the script of a failure finds a kernel with this mistake wrong, and what it prints."""
    script: dict[str, Any] = {"__name__": "script"}
    exec(render_script("id", calls, failure, Target.NATIVE), script)  # noqa: S102 - the script that we made

    def kernel(**arguments: Any) -> None:
        ops.trtllm_batch_context_with_kv_cache(**arguments)
        mistake(arguments["out"], arguments["lse"])

    script[OP] = kernel
    with redirect_stdout(io.StringIO()) as printed:
        wrong = script["run"]()
    return wrong, printed.getvalue()


def right(out: torch.Tensor, lse: torch.Tensor) -> None:
    """Make no mistake."""


@pytest.mark.parametrize("failure", [seen(Tier.T1), seen(Tier.T2), seen(Tier.T3, row=None), seen(Tier.T4, "lse")])
def test_a_script_of_any_tier_finds_nothing_wrong_with_a_correct_kernel(calls: CallCase, failure: Observation) -> None:
    wrong, printed = run(calls, failure, right)
    assert not wrong, printed


def test_a_noisy_row_is_seen_by_its_mean_square_alone(calls: CallCase) -> None:
    deviation = limits(calls, seen(Tier.T2)).numbers
    assert deviation is not None

    def noisy(out: torch.Tensor, _: torch.Tensor) -> None:
        signs = torch.tensor([1.0, -1.0]).repeat(32)
        out[5, 1] += (4 * deviation[5, 1] * signs).to(out.dtype)

    wrong, printed = run(calls, seen(Tier.T2), noisy)
    assert wrong
    assert "seen: request 0 (q_len 24, kv_len 40), token 5, head 1, root mean square error " in printed
    assert " times the allowed one; 1 of 96 rows are wrong" in printed
    assert not run(calls, seen(Tier.T1), noisy)[0]


def test_an_error_of_all_rows_is_found_by_their_common_factor_alone(calls: CallCase) -> None:
    def scaled(out: torch.Tensor, _: torch.Tensor) -> None:
        out *= 1.0006

    wrong, printed = run(calls, seen(Tier.T3, row=None), scaled)
    assert wrong
    assert "seen: over 96 rows, out is 1.00" in printed
    for tier in (Tier.T1, Tier.T2):
        assert not run(calls, seen(tier), scaled)[0]


def test_an_error_of_all_lses_is_found_by_their_common_deviation(
    calls: CallCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    deviation, rows = torch.full((24, 4), 1e-5, dtype=torch.float64), torch.arange(96)
    statistic = CommonError("lse", torch.zeros_like(deviation), 0.0, rows)
    common = ScriptLimits(LimitForm.COMMON, "lse", deviation, most=7.0, statistics=(statistic,))
    # Few kernels have LSEs that are exact enough.
    monkeypatch.setattr(judging, "limits_of", lambda *_: (common,))

    def shifted(_: torch.Tensor, lse: torch.Tensor) -> None:
        lse += 3e-5

    wrong, printed = run(calls, seen(Tier.T3, "lse", row=None), shifted)
    assert wrong
    assert "seen: over 96 rows, lse is +3" in printed
    assert not run(calls, seen(Tier.T3, "lse", row=None), right)[0]


def test_a_row_with_exact_weights_is_judged_by_roundings_alone(equal_weights: CallCase) -> None:
    exact, usual = (limits(equal_weights, seen(tier)).numbers for tier in (Tier.T5, Tier.T1))
    assert exact is not None
    assert usual is not None
    error = (exact[5, 1, 3] + usual[5, 1, 3]) / 2

    def off(out: torch.Tensor, _: torch.Tensor) -> None:
        out[5, 1, 3] += error

    wrong, printed = run(equal_weights, seen(Tier.T5), off)
    assert wrong, printed
    assert "token 5, head 1, element 3: " in printed
    assert not run(equal_weights, seen(Tier.T1), off)[0]


def test_an_lse_is_judged_by_its_own_bound(calls: CallCase) -> None:
    bound = limits(calls, seen(Tier.T4, "lse")).numbers
    assert bound is not None

    def off(_: torch.Tensor, lse: torch.Tensor) -> None:
        lse[5, 1] += 2.5 * bound[5, 1]

    wrong, printed = run(calls, seen(Tier.T4, "lse"), off)
    assert wrong
    assert "token 5, head 1, lse " in printed
    assert " times the allowed error; 1 of 96 rows are wrong" in printed


def test_two_runs_that_differ_are_both_in_the_script(runner: Runner) -> None:
    pinned = Path(__file__).parents[2] / "defects" / "key_offsets_wrap.json"
    case = case_file.decode(json.dumps(json.loads(pinned.read_text())["case"]).encode())
    exporter = Exporter(case, runner)
    assert exporter.seen is not None
    assert exporter.seen.tier == Tier.T6
    script: dict[str, Any] = {"__name__": "script"}
    exec(exporter.script(), script)  # noqa: S102 - the script that we made
    script["native"] = build.load
    with redirect_stdout(io.StringIO()) as printed:
        assert script["run"]()
    assert "seen: request 27 (q_len 1, kv_len 2), token 0, head 0, element 0: 1.5625 instead of -0.271484375, " in (
        printed.getvalue()
    )
