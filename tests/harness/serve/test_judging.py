"""Each oracle fails for its fault on a stand-in, and for no other; log-probabilities are judged by the floor."""

from collections.abc import Callable

import pytest
from fake_llm_server import FakeFault, FakeLlm
from served_here import wait_for_nothing

from attnfuzz.harness.serve.check import judge_trace
from attnfuzz.harness.serve.client import Client, ServerError
from attnfuzz.harness.serve.floor import LEAST, _floor_of, calibrate_floor
from attnfuzz.harness.serve.judging import ServedKind, compare_replies, errors
from attnfuzz.harness.serve.reply import Completion, Reply, Sent
from attnfuzz.harness.serve.target import Busy, TestedServer
from attnfuzz.harness.serve.trace import Abort, Burst, Prompt, RequestTrace, ServedRequest

pytestmark = pytest.mark.slow
"""Servers answer whole traces."""

Make = Callable[[FakeFault], TestedServer]


def _request(stream: int, length: int = 9, tokens: int = 5, **more: object) -> ServedRequest:
    return ServedRequest(prompt=Prompt(stream=stream, shared=length), tokens=tokens, **more)  # type: ignore[arg-type]


TOGETHER = RequestTrace(bursts=(Burst(requests=tuple(_request(stream) for stream in range(5))),))
PAIR = RequestTrace(bursts=(Burst(requests=(_request(0), _request(1))),))
SCORED = RequestTrace(bursts=(Burst(requests=(_request(0, scored=True), _request(1, scored=True))),))
AGAIN = RequestTrace(bursts=(Burst(requests=(_request(0),)), Burst(requests=(_request(0),), after_all=True)))
CLOSED = RequestTrace(bursts=(Burst(requests=(_request(0, abort=Abort.SENT), _request(1))),))

SHOWN = {
    FakeFault.BATCH: (TOGETHER, ServedKind.WRONG_LOGPROBS),
    FakeFault.SWAP: (PAIR, ServedKind.OTHERS_TOKENS),
    FakeFault.PREFIX: (AGAIN, ServedKind.WRONG_TOKENS),
    FakeFault.LEAK: (CLOSED, ServedKind.LEAKED),
    FakeFault.STUCK: (CLOSED, ServedKind.LEAKED),
    FakeFault.MISCOUNT: (AGAIN, ServedKind.MISCOUNTED),
    FakeFault.CRASH: (SCORED, ServedKind.DIED),
    FakeFault.AGAIN: (SCORED, ServedKind.DIED),
    FakeFault.DROP: (SCORED, ServedKind.ERROR),
    FakeFault.HANG: (TOGETHER, ServedKind.HUNG),
}


@pytest.mark.parametrize("fault", SHOWN)
def test_each_fault_is_found_by_its_oracle(tested: Make, monkeypatch: pytest.MonkeyPatch, fault: FakeFault) -> None:
    wait_for_nothing(monkeypatch)
    trace, kind = SHOWN[fault]
    found, *_ = judge_trace(tested(fault), trace, 0.0).faults
    assert found.kind is kind


@pytest.mark.parametrize("trace", [TOGETHER, PAIR, SCORED, AGAIN, CLOSED])
def test_a_right_server_passes(tested: Make, trace: RequestTrace) -> None:
    assert judge_trace(tested(FakeFault.NONE), trace, 0.0).faults == ()


def test_never_more_requests_than_allowed_are_under_way(fake: Callable[[FakeFault], FakeLlm]) -> None:
    llm = fake(FakeFault.NONE)
    server = TestedServer(client=Client.of(llm.url), mine=True, concurrency=2, timeout=60)
    server.find_out()
    llm.linger = 0.05
    server.run(TOGETHER)
    assert llm.most_running == 2


def test_the_stand_in_answers_a_closed_request_before_the_next_burst(fake: Callable[[FakeFault], FakeLlm]) -> None:
    """Else requests of that burst would join its batch, and the others would wait for them until they time out."""
    llm = fake(FakeFault.NONE)
    server = TestedServer(client=Client.of(llm.url), mine=True, concurrency=8, timeout=60)
    server.find_out()
    llm.linger = 0.05
    closed = Burst(requests=(_request(0, abort=Abort.SENT),))
    llm.most_running = 0
    server.run(RequestTrace(bursts=(closed, Burst(requests=(_request(1),), after_all=True))))
    assert llm.most_running == 1


def test_a_busy_server_is_tried_three_times_and_called_so(tested: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.harness.serve.target.SECONDS_BETWEEN_FLUSHES", 0.0)
    server = tested(FakeFault.BUSY)
    with pytest.raises(Busy, match="in 3 tries: it is busy with requests of others") as raised:
        server.flush()
    assert isinstance(raised.value, ServerError)


def test_an_exact_server_has_no_floor(tested: Make) -> None:
    floor = calibrate_floor(tested(FakeFault.NONE), 1, None)
    assert (floor.allowed, floor.seen) == (0.0, 0.0)
    assert floor.requests > 5


def test_noise_is_measured_and_then_no_failure(tested: Make) -> None:
    server = tested(FakeFault.NOISE)
    floor = calibrate_floor(server, 1, None)
    assert 0.009 < floor.allowed < 0.2
    assert judge_trace(server, TOGETHER, floor.allowed).faults == ()
    assert judge_trace(server, TOGETHER, 0.0).faults, "without the floor it would fail"


def test_a_fault_of_few_requests_raises_no_floor(tested: Make) -> None:
    floor = calibrate_floor(tested(FakeFault.BATCH), 1, None)
    assert floor.allowed in {0.0, LEAST}


def test_a_difference_by_rounding_raises_the_floor_to_the_least_however_seldom_it_is() -> None:
    """As of vLLM with drafts on a CPU, where one of 37 requests differed by 6.44e-06."""
    equal = [0.0] * 36
    assert _floor_of(equal) == 0.0
    assert _floor_of([*equal, 6.44e-06]) == LEAST
    assert _floor_of([*equal, 0.2]) == 0.0, "a bug of few requests"
    assert _floor_of([0.01] * 10) == pytest.approx(0.16)


def test_a_given_floor_is_taken(tested: Make) -> None:
    assert calibrate_floor(tested(FakeFault.NONE), 1, 0.5).allowed == 0.5


def _reply(tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> Reply:
    return Reply((Completion(tokens, logprobs),))


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (_reply((1, 3, 9), (-1.0, -0.703, -5.0)), False),
        (_reply((1, 3, 9), (-1.0, -0.9, -5.0)), True),
        (_reply((1, 2, 3), (-1.0, -0.7, -0.1)), False),
    ],
    ids=["a near tie may fall either way", "a token that is less likely is wrong", "equal"],
)
def test_tokens_may_differ_at_a_near_tie_alone(other: Reply, differ: bool) -> None:
    one = _reply((1, 2, 3), (-1.0, -0.7, -0.1))
    compared = compare_replies(_request(0), one, other, 0.01)
    assert compared.tokens_differ is differ
    assert (compared.difference > 0.01) is differ


def test_without_a_floor_each_token_counts() -> None:
    compared = compare_replies(_request(0), _reply((1, 2), (-1.0, -0.5)), _reply((1, 3), (-1.0, -0.5)), 0.0)
    assert compared.tokens_differ


def test_not_a_number_is_a_difference() -> None:
    compared = compare_replies(_request(0), _reply((1,), (float("nan"),)), _reply((1,), (-1.0,)), 0.5)
    assert compared.difference == float("inf")


@pytest.mark.parametrize(("status", "kinds"), [(400, []), (500, [ServedKind.ERROR]), (0, [ServedKind.ERROR])])
def test_a_request_that_is_refused_is_no_error_by_itself(status: int, kinds: list[ServedKind]) -> None:
    assert [each.kind for each in errors([Sent(error="it failed", status=status)])] == kinds


def test_a_refused_stream_leaves_the_other_requests_alone(tested: Make) -> None:
    # The stand-in refuses priorities.
    closed = _request(0, abort=Abort.DECODE, priority=1)
    trace = RequestTrace(bursts=(Burst(requests=(closed,)), Burst(requests=(_request(1),), after_all=True)))
    refused, answered = tested(FakeFault.NONE).run(trace)
    assert (refused.status, answered.reply is not None) == (400, True)
