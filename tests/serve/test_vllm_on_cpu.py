"""attnfuzz serve on a real vLLM: a right server passes, and mistakes that are planted in its planning are found."""

from pathlib import Path

import pytest
from fake_llm_server import free_port
from vllm_on_cpu import server_command

from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.discovery import discover
from attnfuzz.harness.serve.judging import WRONG_ANSWERS, ServedKind
from attnfuzz.harness.serve.run import run_against
from attnfuzz.harness.serve.surface import Ability, Speaks

pytestmark = pytest.mark.serve


def test_a_server_of_vllm_is_found_out(server: str) -> None:
    surface = discover(Client.of(server))
    assert (surface.speaks, surface.engine) == (Speaks.OPENAI, "vllm 0.32.0")
    assert (surface.page, surface.chunk, surface.rows, surface.pool) == (32, 128, 32, 64 * 32)
    assert set(surface.can) == set(Ability) - {Ability.FLUSH, Ability.ABORT}


def test_a_right_server_passes_without_a_floor(server: str, tmp_path: Path) -> None:
    served = run_against(ServePlan(url=server, out=tmp_path, mine=True, traces=15, seed=2))
    assert served.standing.clean, served.standing.verdict
    assert served.standing.floor is not None
    assert served.standing.floor.allowed == 0
    assert served.standing.hits > 0


def test_a_right_server_that_drafts_passes(python: str, folder: Path, tmp_path: Path) -> None:
    """Drafts beside requests that are sampled: docs/findings/vllm-cpu-draft-temperatures.md is fixed here."""
    port = free_port()
    plan = ServePlan(
        url=f"http://127.0.0.1:{port}",
        out=tmp_path,
        start=server_command(python, folder / "model", port, folder / "plugin", "none-speculating"),
        traces=10,
        seed=1,
        until_finding=True,
    )
    served = run_against(plan)
    assert served.standing.clean, served.standing.verdict


@pytest.mark.parametrize(("planted", "needs"), [("prefix_cache", {"shared prefix"}), ("block_table", {"at once"})])
def test_a_mistake_in_the_planning_is_found(
    python: str, folder: Path, tmp_path: Path, planted: str, needs: set[str]
) -> None:
    port = free_port()
    plan = ServePlan(
        url=f"http://127.0.0.1:{port}",
        out=tmp_path,
        start=server_command(python, folder / "model", port, folder / "plugin", planted),
        traces=60,
        seed=1,
        until_finding=True,
    )
    (finding,) = run_against(plan).standing.filed.values()
    assert finding.fault.kind in WRONG_ANSWERS | {ServedKind.ERROR}
    assert len(finding.trace.requests) <= 6
    assert needs <= set(finding.needs), "it passes without these"
    assert "0.32.0" in Path(finding.path, "environment.json").read_text()
