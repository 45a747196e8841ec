"""Traces are drawn within the sizes of a server, and minimized to the requests that matter."""

import msgspec
import pytest

from attnfuzz.harness.serve.ablation import FEATURES, features
from attnfuzz.harness.serve.draw import SlicesAhead, drawn, traces
from attnfuzz.harness.serve.shrink import kept, shrink_trace
from attnfuzz.harness.serve.surface import Ability, Speaks, Surface
from attnfuzz.harness.serve.trace import Abort, Burst, Prompt, RequestTrace, ServedRequest, describe_trace

SURFACE = Surface(
    speaks=Speaks.OPENAI, model="m", engine="e", page=32, chunk=128, rows=8, longest=512, pool=1024, can=tuple(Ability)
)


def test_the_same_seed_draws_the_same_traces() -> None:
    assert drawn(traces(SURFACE, 8), number=5, seed_of=3) == drawn(traces(SURFACE, 8), number=5, seed_of=3)


def test_a_slice_that_is_drawn_ahead_is_the_one_that_was_asked_for() -> None:
    slices = SlicesAhead(3, 4, lambda index: 100 + index)
    try:
        for index, gentle in ((0, False), (1, False), (2, True)):
            wanted = drawn(traces(SURFACE, 4, gentle=gentle), number=3, seed_of=100 + index)
            assert slices.take(index, SURFACE, gentle=gentle, last=index == 2) == wanted
    finally:
        slices.end()


@pytest.mark.slow
def test_drawn_traces_fit_the_server_and_show_its_edges() -> None:
    found = drawn(traces(SURFACE, 10), number=80, seed_of=1)
    ranked = drawn(traces(msgspec.structs.replace(SURFACE, ranks=2), 10), number=5, seed_of=1)
    requests = [request for trace in found for request in trace.requests]
    assert all(request.prompt.length + request.tokens < SURFACE.longest for request in requests)
    lengths = {request.prompt.length for request in requests}
    edges = {multiple + change for multiple in (32, 64, 96, 128, 256) for change in (-1, 0, 1)}
    assert len(edges & lengths) > len(edges) / 2
    assert {abort for request in requests if (abort := request.abort)} == set(Abort)
    assert {len(burst.requests) for trace in found for burst in trace.bursts} >= {1, 7, 8, 9}
    two = msgspec.structs.replace(SURFACE, ranks=2)
    shown = {name for trace in (*found, *ranked) for name in features(trace, two)}
    assert shown == {each.name for each in FEATURES}
    needed = max(sum(each.prompt.length + each.tokens for each in trace.requests) for trace in found)
    assert needed > SURFACE.pool, "some traces need more than the pool"


def _everything() -> RequestTrace:
    prompt = Prompt(stream=0, shared=4, period=2)
    plain = ServedRequest(prompt=prompt, tokens=1)
    rich = ServedRequest(
        prompt=prompt, tokens=1, n=2, priority=1, allowed=1, grammar=True, scored=True, rank=1, abort=Abort.SENT
    )
    return RequestTrace(bursts=(Burst(requests=(plain, rich)), Burst(requests=(plain,), after_all=True)))


def test_gentle_traces_abort_nothing_and_are_small() -> None:
    found = drawn(traces(msgspec.structs.replace(SURFACE, ranks=2), 64, gentle=True), number=30, seed_of=1)
    assert not any(request.abort or request.rank is not None for trace in found for request in trace.requests)
    assert max(len(burst.requests) for trace in found for burst in trace.bursts) <= 4


def test_an_ability_that_a_server_lacks_is_not_drawn() -> None:
    bare = msgspec.structs.replace(SURFACE, can=())
    requests = [each for trace in drawn(traces(bare, 8), number=30, seed_of=2) for each in trace.requests]
    assert all(each.n == 1 and not (each.priority or each.allowed or each.grammar or each.scored) for each in requests)


@pytest.mark.slow
def test_requests_are_sent_to_ranks_with_others_idle() -> None:
    ranked = msgspec.structs.replace(SURFACE, ranks=2)
    found = drawn(traces(ranked, 8), number=40, seed_of=2)
    seen = {tuple(dict.fromkeys(each.rank for each in burst.requests)) for trace in found for burst in trace.bursts}
    assert {(None,), (0,), (1,)} <= seen, "the server's choice, or one rank"
    assert any({0, 1} <= set(each) for each in seen)
    assert not any(each.as_asked_alone.rank is not None for trace in found for each in trace.requests)
    assert all(
        each.rank is None for trace in drawn(traces(SURFACE, 8), number=20, seed_of=2) for each in trace.requests
    )


def test_a_failure_on_any_rank_is_minimized_to_the_choice_of_the_server() -> None:
    found = drawn(traces(msgspec.structs.replace(SURFACE, ranks=4), 8), number=20, seed_of=3)
    trace = next(trace for trace in found if all(each.rank is not None for each in trace.requests))
    anywhere, _ = shrink_trace(trace, lambda _: True, over=lambda: False)
    assert {each.rank for each in anywhere.requests} == {None}
    somewhere, _ = shrink_trace(
        trace, lambda each: all(one.rank is not None for one in each.requests), over=lambda: False
    )
    assert {each.rank for each in somewhere.requests} == {0}


def test_prompts_of_a_stream_share_a_prefix_and_diverge_by_a_token() -> None:
    one, other = (Prompt(stream=1, shared=31, own=1, own_stream=stream) for stream in (7, 8))
    assert one.prefix_shared_with(other) == 31
    assert Prompt(stream=1, shared=40).prefix_shared_with(one) >= 31
    assert len(set(Prompt(stream=2, shared=9, period=2).tokens)) == 2


def test_a_trace_survives_its_json() -> None:
    for trace in drawn(traces(SURFACE, 8), number=20, seed_of=4):
        assert msgspec.json.decode(msgspec.json.encode(trace), type=RequestTrace) == trace


def test_a_failure_of_two_long_prompts_at_once_is_minimized_to_them() -> None:
    def fails(trace: RequestTrace) -> bool:
        return any(sum(request.prompt.length > 40 for request in burst.requests) > 1 for burst in trace.bursts)

    trace = next(each for each in drawn(traces(SURFACE, 8), number=30, seed_of=5) if fails(each))
    smallest, tried = shrink_trace(trace, fails, over=lambda: False)
    assert [request.prompt.length for request in smallest.requests] == [41, 41]
    assert all(request.tokens == 1 and request.abort is None for request in smallest.requests)
    assert features(smallest, SURFACE) in {("at once",), ("at once", "shared prefix")}
    assert tried < 400


def test_requests_that_share_a_prefix_with_the_one_that_failed_are_tried_first() -> None:
    shown, sharing, *others = (ServedRequest(Prompt(stream, 40), tokens=1) for stream in (0, 0, 1, 2, 3))
    trace = RequestTrace(bursts=(Burst(requests=(others[0], sharing)), Burst(requests=(*others[1:], shown))))
    tried: list[int] = []

    def fails(candidate: RequestTrace) -> bool:
        tried.append(len(candidate.requests))
        return len(candidate.requests) > 1

    smallest, _ = shrink_trace(trace, fails, over=lambda: False, shown_by=(4,))
    assert tried[:2] == [1, 2], "alone in its burst, then with the other of its stream"
    assert len(smallest.requests) == 2


def test_requests_that_come_later_stay_later_if_they_have_to() -> None:
    def fails(trace: RequestTrace) -> bool:
        return any(burst.after_all for burst in trace.bursts[1:])

    trace = next(each for each in drawn(traces(SURFACE, 4), number=30, seed_of=6) if fails(each))
    smallest, _ = shrink_trace(trace, fails, over=lambda: False)
    assert [len(burst.requests) for burst in smallest.bursts] == [1, 1]


def test_pauses_go_first_since_each_candidate_would_wait() -> None:
    tried: list[RequestTrace] = []
    everything = _everything()
    slow = RequestTrace(bursts=tuple(msgspec.structs.replace(burst, pause=2.0) for burst in everything.bursts))
    shrink_trace(slow, lambda candidate: not tried.append(candidate), over=lambda: bool(tried))  # type: ignore[func-returns-value]
    assert tried == [everything]


def test_no_trace_is_tried_after_the_time() -> None:
    trace = _everything()
    assert shrink_trace(trace, lambda _: True, over=lambda: True) == (trace, 0)


def test_a_burst_without_requests_goes() -> None:
    assert [len(burst.requests) for burst in kept(_everything(), {2}).bursts] == [1]


def test_a_description_names_the_features_of_a_request() -> None:
    text = describe_trace(_everything())
    assert all(each in text for each in ("after all before", "closed: sent", "n 2", "repeats every 2", "grammar"))
