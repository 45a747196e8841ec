"""A TensorRT-LLM server is found out and tested: on a stand-in that was written from its source."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_llm_server import FakeFault
from fake_trtllm_server import FakeTrtllm
from served_here import wait_for_nothing

from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.discovery import discover
from attnfuzz.harness.serve.judging import ServedKind
from attnfuzz.harness.serve.run import run_against
from attnfuzz.harness.serve.surface import Ability, Speaks, Surface
from attnfuzz.harness.serve.trace import Prompt, ServedRequest
from attnfuzz.harness.serve.trtllm import TensorRtApi, with_iterations

pytestmark = pytest.mark.slow
"""Servers answer whole traces."""

REQUEST = ServedRequest(prompt=Prompt(stream=0, shared=3), tokens=2)
SURFACE = Surface(speaks=Speaks.TENSORRT, model="m", engine="tensorrt_llm 1.2.0")


@pytest.fixture
def right() -> Iterator[FakeTrtllm]:
    """A server without a fault."""
    with FakeTrtllm() as server:
        yield server


def _plan(server: FakeTrtllm, home: Path, traces: int, *, until_finding: bool = False) -> ServePlan:
    return ServePlan(
        url=server.url, out=home, mine=True, concurrency=8, traces=traces, seed=1, until_finding=until_finding
    )


def test_its_endpoints_sizes_and_abilities_are_found_out(right: FakeTrtllm) -> None:
    surface = discover(Client.of(right.url))
    assert (surface.speaks, surface.engine) == (Speaks.TENSORRT, "tensorrt_llm 1.2.0-fake")
    assert (surface.page, surface.chunk, surface.rows, surface.pool) == (4, 16, 8, 10_000)
    able = {Ability.TOKEN_IDS, Ability.METRICS, Ability.SEVERAL, Ability.PRIORITY, Ability.BIAS, Ability.GRAMMAR}
    assert set(surface.can) == able, "no flush, no log-probabilities of prompts, no aborts by name"


def test_a_server_that_is_not_configured_for_it_has_fewer_abilities() -> None:
    with FakeTrtllm(configured=False) as server:
        surface = discover(Client.of(server.url))
    assert {Ability.METRICS, Ability.GRAMMAR}.isdisjoint(surface.can)


def test_a_body_has_no_field_that_the_server_refuses() -> None:
    rich = ServedRequest(prompt=Prompt(0, 3), tokens=2, n=2, priority=-1, allowed=1, grammar=True, scored=True, rank=1)
    body = TensorRtApi().body(rich, SURFACE, "name")
    assert body.keys().isdisjoint({"return_token_ids", "prompt_logprobs", "structured_outputs", "rid"})
    assert 0 <= body["priority"] < 0.5, "priorities lie between 0 and 1"
    assert body["logprobs"] == 1, "0 would be none"
    assert not TensorRtApi().headers(rich)


@pytest.mark.parametrize(
    "listed", [None, [], {}, [None], [{}], [{"kvCacheStats": None}], [{"kvCacheStats": {"maxNumBlocks": "x"}}]]
)
def test_statistics_without_sizes_leave_them_unknown(listed: object) -> None:
    assert with_iterations(SURFACE, listed) == SURFACE


def test_a_correct_server_passes_and_the_lack_of_a_flush_is_reported(
    right: FakeTrtllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_nothing(monkeypatch)
    # A right server settles, however slow the machine is.
    monkeypatch.setattr("attnfuzz.harness.serve.target.SECONDS_TO_SETTLE", 30.0)
    standing = run_against(_plan(right, tmp_path, traces=20)).standing
    # Gauges of the last iteration are no leak, and n > 1 need not be counted.
    assert [each.fault for each in (*standing.failing, *standing.unconfirmed)] == []
    assert standing.clean
    (said,) = standing.troubles
    assert "can't be flushed" in said
    assert "TensorRT-LLM has no endpoint for that" in said
    assert not [path for path in right.paths if "flush" in path or "reset" in path or "abort" in path]


def test_a_fault_is_found_and_counters_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_nothing(monkeypatch)
    for fault, kind in ((FakeFault.BATCH, ServedKind.WRONG_LOGPROBS), (FakeFault.MISCOUNT, ServedKind.MISCOUNTED)):
        with FakeTrtllm(fault) as server:
            standing = run_against(_plan(server, tmp_path / fault, traces=6, until_finding=True)).standing
        assert {each.fault.kind for each in standing.failing} == {kind}
