"""Campaigns add their margins to their home's file, by backend and dtype of queries."""

from pathlib import Path

from campaign_events import started

from attnfuzz.harness.campaign.events import AnyEvent, CampaignFinished, Progress
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.margins import add_margins
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.search.messages import DtypeMargins, Tally
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recorded_margins import load

VERSIONS = {"attnfuzz": "1.0", "torch": "2.13.0", "cpu": "a CPU, 2 cores"}
INTERRUPTED = CampaignFinished(at=2.0, time=0.0, interrupted=True)


def progress(rows: int, margin: float, backend: str = "torch_sdpa") -> Progress:
    dtypes = {"bfloat16": DtypeMargins(rows, {"T1": margin})}
    return Progress(at=1.0, backend=backend, tally=Tally(cases=1, rows=rows, dtypes=dtypes))


def rows_and_margins(home: Home) -> list[tuple[str, DType, int, object]]:
    return [(each.backend, each.dtype, each.rows, each.margins) for each in load(home.margins)]


def test_campaigns_of_a_home_add_up(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for rows, margin in ((10, 0.5), (5, 0.25)):
        events: list[AnyEvent] = [started("torch_sdpa"), progress(rows, margin)]
        add_margins(home, Standing.of(events), (), VERSIONS)
    assert rows_and_margins(home) == [("torch_sdpa", DType.BFLOAT16, 15, {"T1": 0.5})]


def test_rows_of_an_interrupted_campaign_count_once_when_it_is_resumed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    past: list[AnyEvent] = [started("torch_sdpa"), progress(10, 0.5), INTERRUPTED]
    add_margins(home, Standing.of(past), (), VERSIONS)
    add_margins(home, Standing.of([*past, progress(5, 0.25)]), past, VERSIONS)
    assert rows_and_margins(home) == [("torch_sdpa", DType.BFLOAT16, 15, {"T1": 0.5})]


def test_a_backend_that_is_unknown_here_or_cannot_run_here_has_no_record(tmp_path: Path) -> None:
    home = Home(tmp_path)
    elsewhere = [progress(10, 0.5, "no_such_backend"), progress(10, 0.5, "blackwell:trtllm_mha")]
    add_margins(home, Standing.of([started("torch_sdpa"), *elsewhere]), (), VERSIONS)
    assert not home.margins.exists()


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.margins.write_text("[")
    add_margins(home, Standing.of([started("torch_sdpa"), progress(10, 0.5)]), (), VERSIONS)
    assert len(load(home.margins)) == 1
