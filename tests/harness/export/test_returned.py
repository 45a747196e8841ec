"""Scripts of calls that return their outputs: they return them too, and show a returned output that is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.export import Exporter
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.call_validity import validate_bounds
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.validity import ImpossibleCase

SOURCE = """
import torch
from attnfuzz import ArgumentForm, ArgumentRule, Capability, FunctionBackend
from attnfuzz.reference.case import Mode
from attnfuzz.reference.geometry import KvLayout

def attend(*, query, k_cache, v_cache, block_tables, seq_lens, scale, out=None):
    rows = []
    for row, length in enumerate(seq_lens.tolist()):
        pages = block_tables[row][: -(-length // k_cache.shape[1])].long()
        group = query.shape[1] // k_cache.shape[2]
        key, value = (c[pages].flatten(0, 1)[:length].float().repeat_interleave(group, 1) for c in (k_cache, v_cache))
        weights = torch.softmax(scale * torch.einsum("hd,nhd->hn", query[row].float(), key), 1)
        rows.append(torch.einsum("hn,nhd->hd", weights, value))
    answer = torch.stack(rows).to(query.dtype)
    return answer + 1 if out is None else out.copy_(answer)

CAN = Capability(
    modes=(Mode.DECODE,), layouts=(KvLayout.NHD,), arguments=(ArgumentRule(ArgumentForm.OUT_RETURNED),)
)
RETURNS = FunctionBackend(attend, capability=CAN)
"""
"""Attention to batches of at least one key, which returns other numbers than it writes."""


@pytest.fixture(scope="module")
def exporter(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """A case that fails where the output is returned, and passes where it is passed."""
    path = tmp_path_factory.mktemp("backend") / "returns.py"
    path.write_text(SOURCE)
    plain = decode_case(f"{path}:RETURNS", 6, 9, padded=2)
    plain = replace(plain, geometry=replace(plain.geometry, kv_layout=KvLayout.NHD))
    verdict = runner.verdict(plain)
    assert (verdict.unsupported, verdict.failures) == (None, ())
    return Exporter(replace(plain, arguments=(ArgumentForm.OUT_RETURNED,)), runner, carry=(path,))


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


@pytest.mark.slow  # A script is a process.
def test_a_script_shows_an_output_that_is_wrong_where_it_is_returned(exporter: Exporter, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(exporter.script())
    assert "out=" not in script.read_text().partition("result = carried_attend(")[2].partition("compare(")[0]
    shown = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert shown.returncode == 1, shown.stderr
    assert "seen: request 0 " in shown.stdout
