"""Results with their right contents beside them, judged in the harness and in scripts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch

import attnfuzz.harness.export
from attnfuzz.harness.export.python_source import inlined
from attnfuzz.harness.judge.compared import judge_compared
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.memory.poison import sentinel
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.tiers import ALL_TIERS, Tier
from attnfuzz.kernels.interface.compared import ComparedResult, ComparedTensor
from attnfuzz.reference import elements
from attnfuzz.reference.contract import Contract

TEMPLATE = Path(attnfuzz.harness.export.__file__).parent / "tensors.py.j2"
NAN, INF = float("nan"), float("inf")


def terms(tiers: frozenset[Tier] = ALL_TIERS) -> JudgingTerms:
    return JudgingTerms(
        contract=Contract(), noise=None, alpha=1e-9, strict=False, tiers=tiers, step=0, mode="copy", kernel="copy_rows"
    )


def compare_tensor() -> Callable[..., bool]:
    """The function that scripts have."""
    space: dict[str, Any] = {"torch": torch}
    text = jinja2.Template(TEMPLATE.read_text()).render(elementwise=inlined((elements,), ("over_bound",), {}))
    exec(text, space)  # noqa: S102 - the text of a script
    found: Callable[..., bool] = space["compare_tensor"]
    return found


@pytest.mark.parametrize(
    ("seen", "right", "bound", "kind"),
    [
        ([1.0, 2.0], [1.0, 2.0], None, None),
        ([1.0, -0.0], [1.0, 0.0], None, Kind.WRITE_MISMATCH),
        ([1, 1 << 40], [1, (1 << 40) + 1], None, Kind.WRITE_MISMATCH),
        ([1.0, 2.5], [1.0, 2.0], [0.0, 0.5], None),
        ([1.0, 2.5], [1.0, 2.0], [0.5, 0.25], Kind.OUTPUT_MISMATCH),
        ([1.0, 2.5], [1.0, 2.0], [0.0, INF], None),
        ([1.0, NAN], [1.0, 2.0], [1.0, 1.0], Kind.NOT_FINITE),
        ([1.0, NAN], [1.0, 2.0], [1.0, INF], None),
        ([NAN, INF], [NAN, INF], [0.0, 0.0], None),
        ([INF, 1.0], [-INF, 1.0], [1.0, 1.0], Kind.OUTPUT_MISMATCH),
    ],
)
def test_elements_are_judged_by_their_bounds_or_their_bits(
    seen: list[float], right: list[float], bound: list[float] | None, kind: Kind | None
) -> None:
    parts = [None if each is None else torch.tensor(each) for each in (seen, right, bound)]
    found = judge_compared(ComparedResult((ComparedTensor("out", *parts),)), terms())  # type: ignore[arg-type]
    assert [each.kind for each in found.observations] == ([] if kind is None else [kind])
    assert compare_tensor()("out", *parts) is (kind is not None)


def test_a_bound_broadcasts_and_the_worst_element_is_named() -> None:
    right = torch.zeros(2, 3, dtype=torch.bfloat16)
    seen = right.clone()
    seen[1, 2] = 3.0
    (found,) = judge_compared(
        ComparedResult((ComparedTensor("state", seen, right, torch.ones(3)),)), terms()
    ).observations
    assert (found.place, found.tier, found.margin) == ("state", Tier.T1, 3.0)
    assert found.message == "state[1, 2] holds 3 instead of 0, 3 times the allowed error; 1 of 6 elements are wrong"


def test_an_output_that_holds_the_sentinel_was_never_written() -> None:
    right = torch.zeros(4)
    stale = sentinel(torch.float32).fill(torch.empty(4))
    (found,) = judge_compared(ComparedResult((ComparedTensor("out", stale, right),)), terms()).observations
    assert found.kind is Kind.UNWRITTEN


def test_a_tier_that_does_not_run_judges_nothing() -> None:
    wrong = ComparedResult((ComparedTensor("out", torch.ones(1), torch.zeros(1), torch.zeros(1)),))
    assert not judge_compared(wrong, terms(frozenset({Tier.T0}))).observations
