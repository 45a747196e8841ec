"""The features that a failing trace needs are found by running it without each; a known cause's predictions are run."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
from msgspec.structs import replace

from attnfuzz.harness.serve.ablation import FEATURES, Rerunning, ablated, features, without
from attnfuzz.harness.serve.draw import drawn, traces
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.predictions import KnownServerCause, attribute_trace
from attnfuzz.harness.serve.surface import Ability, Speaks, Surface
from attnfuzz.harness.serve.trace import Abort, Burst, Prompt, RequestTrace, ServedRequest

SURFACE = Surface(
    speaks=Speaks.SGLANG,
    model="m",
    engine="e",
    page=16,
    chunk=64,
    rows=8,
    longest=512,
    pool=512,
    ranks=2,
    can=tuple(Ability),
)

WRONG = ServedFault(ServedKind.WRONG_TOKENS, "")


def _needing(*names: str) -> Callable[[RequestTrace], Rerunning]:
    """A server that answers traces with all of these features wrongly."""
    return lambda trace: Rerunning(2 * (set(names) <= set(features(trace, SURFACE))), 2)


def _everything() -> RequestTrace:
    rich = ServedRequest(
        prompt=Prompt(stream=0, shared=100, period=2),
        tokens=200,
        n=2,
        priority=1,
        allowed=1,
        grammar=True,
        scored=True,
        rank=1,
        abort=Abort.SENT,
    )
    plain = ServedRequest(prompt=Prompt(stream=0, shared=100, period=2), tokens=1, rank=1)
    return RequestTrace(bursts=(Burst(requests=(plain, rich), pause=0.1), Burst(requests=(plain,), after_all=True)))


@cache
def _drawn() -> Sequence[RequestTrace]:
    return (*drawn(traces(SURFACE, 8), number=20, seed_of=7), _everything())


@pytest.mark.parametrize("feature", [each.name for each in FEATURES])
def test_a_feature_is_taken_out_of_every_trace_that_has_it(feature: str) -> None:
    having = [trace for trace in _drawn() if feature in features(trace, SURFACE)]
    assert having
    for trace in having:
        variants = without(trace, [feature], SURFACE)
        assert variants, "there is a trace without it"
        assert not any(feature in features(variant, SURFACE) for variant in variants)
        assert any(len(variant.requests) == len(trace.requests) for variant in variants)


@pytest.mark.parametrize("needs", [("at once",), ("shared prefix", "n > 1"), ("chunked prompt", "abort"), ()])
def test_the_features_that_a_failure_needs_are_found(needs: tuple[str, ...]) -> None:
    found = ablated(_everything(), _needing(*needs), SURFACE, over=lambda: False)
    assert set(found.needs) == set(needs)
    arrivals = {"one after another", "at once", "chunked prompt"}
    assert set(features(found.trace, SURFACE)) <= arrivals | set(needs), "requests that arrive together fill a chunk"


def test_prompts_too_short_to_share_a_prefix_say_nothing_of_chunks() -> None:
    """Where prompts fit in a chunk only if they share no more, it is unknown if the failure needs chunks."""
    small = replace(SURFACE, chunk=7, pool=0)
    request = ServedRequest(Prompt(stream=0, shared=4), tokens=1)
    trace = RequestTrace(bursts=(Burst(requests=(request, request)),))
    assert features(trace, small) == ("at once", "shared prefix", "chunked prompt")

    def repeat(each: RequestTrace) -> Rerunning:
        return Rerunning(2 * ({"at once", "shared prefix"} <= set(features(each, small))), 2)

    assert ablated(trace, repeat, small, over=lambda: False).needs == ("at once", "shared prefix")


def test_few_runs_find_one_needed_feature_among_many() -> None:
    tried: list[RequestTrace] = []
    fails = _needing("n > 1")
    ablated(_everything(), lambda trace: tried.append(trace) or fails(trace), SURFACE, over=lambda: False)  # type: ignore[func-returns-value]
    assert len(tried) <= len(features(_everything(), SURFACE))


def test_features_that_were_not_removed_in_time_are_named() -> None:
    found = ablated(_everything(), _needing(), SURFACE, over=lambda: True)
    assert found.needs == ()
    assert found.trace == _everything()
    assert set(found.untried) == set(features(_everything(), SURFACE))


def test_a_steady_failure_does_not_go_on_with_a_trace_that_fails_at_times() -> None:
    found = ablated(_everything(), lambda _: Rerunning(1, 2), SURFACE, over=lambda: False)
    assert found.trace == _everything()
    assert found.needs == (), "it fails without each, if not always"


def _cause(*needs: str, kind: ServedKind = ServedKind.WRONG_LOGPROBS) -> KnownServerCause:
    return KnownServerCause("+".join(needs), needs, ServedFault(kind, ""))


def _explained(
    repeat: Callable[[RequestTrace], Rerunning], *known: KnownServerCause
) -> tuple[KnownServerCause | None, RequestTrace]:
    return attribute_trace(_everything(), WRONG, known, repeat, SURFACE, over=lambda: False)


def test_a_trace_that_passes_without_a_cause_and_fails_with_it_alone_is_explained() -> None:
    known = _cause("at once"), _cause("shared prefix", "n > 1"), _cause("grammar")
    for needs, cause in ((("shared prefix", "n > 1"), known[1]), (("grammar",), known[2])):
        assert _explained(_needing(*needs), *known)[0] == cause


def test_a_bug_that_needs_more_than_a_cause_is_another() -> None:
    cause, _ = _explained(_needing("at once", "n > 1"), _cause("at once"))
    assert cause is None


def test_a_bug_hidden_by_a_known_cause_is_pursued() -> None:
    def fails(trace: RequestTrace) -> Rerunning:
        return max(_needing("n > 1")(trace), _needing("grammar")(trace))

    cause, beneath = _explained(fails, _cause("n > 1"))
    assert cause is None
    assert "n > 1" not in features(beneath, SURFACE)
    grammar = _cause("grammar")
    cause, _ = attribute_trace(beneath, WRONG, [grammar], fails, SURFACE, over=lambda: False)
    assert cause == grammar


def test_a_failure_that_another_oracle_sees_is_not_explained() -> None:
    cause, _ = _explained(_needing("n > 1"), _cause("n > 1", kind=ServedKind.LEAKED))
    assert cause is None


def test_no_cause_is_believed_that_was_not_run() -> None:
    def never(_: RequestTrace) -> Rerunning:
        raise AssertionError

    plain = RequestTrace(bursts=(Burst(requests=(ServedRequest(Prompt(0, 3), tokens=1),)),))
    cause, _ = attribute_trace(plain, WRONG, [_cause("n > 1")], never, SURFACE, over=lambda: False)
    assert cause is None
    over = attribute_trace(_everything(), WRONG, [_cause("n > 1")], never, SURFACE, over=lambda: True)
    assert over == (None, _everything())
