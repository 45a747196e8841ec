"""Scripts of calls that return their outputs: they return them too, and show a returned output that is wrong."""

from typing import Any

import pytest
import torch
from harness_cases import decode_case
from msgspec.structs import replace
from plain_attention import attend_paged

from attnfuzz.harness.export import Exporter
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.function_backend import FunctionBackend
from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule
from attnfuzz.reference.call_validity import validate_bounds
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.validity import ImpossibleCase


def attend(*, query: Any, k_cache: Any, v_cache: Any, out: Any = None, **batch: Any) -> Any:
    """Attention by torch, which returns other numbers than it writes."""
    answer = attend_paged(
        query,
        k_cache,
        v_cache,
        batch["block_tables"].long(),
        layout=KvLayout.NHD,
        q_lens=tuple(batch["cum_seq_lens_q"].diff().tolist()),
        kv_lens=tuple(batch["seq_lens"].tolist()),
        bmm1_scale=batch["scale"],
    ).out.to(query.dtype)
    if out is None:
        return torch.cat([answer, torch.zeros_like(query[len(answer) :])]) + 1
    out.zero_()
    return out[: len(answer)].copy_(answer)


RETURNS = FunctionBackend(
    attend,
    capability=Capability(
        modes=(Mode.DECODE,), layouts=(KvLayout.NHD,), arguments=(ArgumentRule(ArgumentForm.OUT_RETURNED),)
    ),
)


@pytest.fixture(scope="module")
def exporter(runner: Runner) -> Exporter:
    """A case that fails where the output is returned, and passes where it is passed."""
    plain = decode_case(f"{__file__}:RETURNS", 6, 9, padded=2)
    plain = replace(plain, geometry=replace(plain.geometry, kv_layout=KvLayout.NHD))
    assert isinstance(plain, Case)
    assert not runner.verdict(plain).observations
    return Exporter(replace(plain, arguments=(ArgumentForm.OUT_RETURNED,)), runner)


@pytest.mark.slow  # A worker runs the case.
def test_calls_know_the_outputs_that_they_return(exporter: Exporter, runner: Runner) -> None:
    calls = exporter.calls
    assert exporter.seen is not None
    assert exporter.seen.kind is Kind.OUTPUT_MISMATCH
    assert calls is not None
    assert [call.returned for call in calls.calls] == [("out",)]
    assert [each.kind for each in runner.verdict(calls).failures] == [Kind.OUTPUT_MISMATCH]
    (call,) = calls.calls
    with pytest.raises(ImpossibleCase, match="must be out or lse"):
        validate_bounds(replace(calls, calls=(replace(call, returned=("query",)),)))
