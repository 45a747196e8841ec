"""What `attnfuzz fuzz` exits with, for each way in which a campaign can end."""

import json
from collections.abc import Callable

import pytest
from campaign_events import checked, filed, finished, kept, searched, started
from command_line import Attnfuzz
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import Event, JobFailed, LedgerRemark
from attnfuzz.harness.campaign.knowledge import JOB_KILLED, OUT_OF_TIME
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import NOT_COME_BACK

BACKEND = "torch_sdpa"
CASE = replace(decode(5), backend=BACKEND)
FILED = filed(CASE)
CHECKED = checked(CASE, State.OPEN)
REMARK = LedgerRemark(at=60, entry=1, title="Hang in x", text="it no longer happens")


@pytest.mark.parametrize(
    ("code", "events"),
    [
        (0, []),
        (1, [FILED]),
        (1, [CHECKED]),
        (1, [replace(CHECKED, state=State.RETURNED)]),
        (0, [replace(CHECKED, state=State.FIXED)]),
        (0, [replace(FILED, known="as agreed"), replace(CHECKED, known="as agreed")]),
        (1, [replace(FILED, known="as agreed"), CHECKED]),
        (0, [REMARK]),
        (1, [FILED, REMARK]),
        (1, [kept(CASE, OUT_OF_TIME)]),
        (1, [kept(CASE, JOB_KILLED)]),
        (0, [kept(CASE, NOT_COME_BACK)]),
        (0, [kept(CASE, OUT_OF_TIME, known="as agreed")]),
        (2, [JobFailed(at=60, job=0, text="KeyError: 'a bug of ours'")]),
    ],
)
def test_the_exit_code_says_what_came_of_it(
    attnfuzz: Attnfuzz, sent: Callable[..., None], code: int, events: list[Event]
) -> None:
    sent(started(BACKEND), searched(BACKEND), *events, finished())
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert ran.code == code
    failed = any(isinstance(event, JobFailed) for event in events)
    assert ("a bug of ours" in ran.err) == failed
    assert ("continue with: attnfuzz fuzz --resume --home attnfuzz-out" in ran.err) == failed


def test_a_campaign_that_judged_nothing_has_not_passed(attnfuzz: Attnfuzz, sent: Callable[..., None]) -> None:
    sent(started(BACKEND), finished(at=50.0))
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert ran.code == 2
    assert "No case was judged in 50 s" in ran.out
    assert "--time" in ran.err
    assert "No findings" not in ran.out
    sent(started(BACKEND), finished(at=50.0))
    assert json.loads(attnfuzz("fuzz", "--backend", BACKEND, "--json", "-").out)["clean"] is False
