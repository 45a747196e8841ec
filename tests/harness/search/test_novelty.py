"""Which cases are interesting: those that reach a pair of features, or come closer to failing, than any before."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fake_search import FakeJudge, decode, hunt, kv_lens, observed
from msgspec.structs import replace

from attnfuzz.harness.search.messages import Interesting, Replay
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage import Pair


def pair_bits(case: Case) -> int:
    """Two features stand for the number of requests and whether the first is long."""
    lengths = kv_lens(case)
    return 1 << 2 * len(lengths) + (lengths[0] > 50)


def pairs_in(bits: int) -> tuple[Pair, ...]:
    """The pairs in a set of such bits."""
    return tuple((f"length={at % 2 == 1}", f"requests={at // 2}") for at in range(bits.bit_length()) if bits >> at & 1)


def no_pairs(_: Case) -> int:
    """No pairs at all."""
    return 0


@dataclass
class FakeSpace:
    """A space of cases with such pairs."""

    pair_bits: Callable[[Any], int] = pair_bits
    pairs_in: Callable[[int], tuple[Pair, ...]] = pairs_in


def passed(**margins: float) -> Verdict:
    return Verdict(margins=margins)


def news_of(novelty: Novelty, seed: int = 1, **task: Any) -> list[Interesting]:
    _, sent = hunt(FakeJudge(lambda _: ()), novelty=novelty, seed=seed, **{"examples": 100, **task})
    return [message for message in sent if isinstance(message, Interesting)]


def test_a_pair_is_reported_with_the_first_case_that_reaches_it() -> None:
    novelty = Novelty(lambda _: FakeSpace())
    first = novelty.of(decode(10), passed())
    assert first == Interesting(case=decode(10), pairs=(("length=False", "requests=1"),))
    assert novelty.of(decode(20), passed()) is None
    assert novelty.of(decode(60), passed()) is not None


def test_a_case_that_fails_reaches_its_pairs() -> None:
    news = Novelty(lambda _: FakeSpace()).of(decode(10), Verdict(observations=(observed(),), margins={"T1": 30.0}))
    assert news == Interesting(case=decode(10), pairs=(("length=False", "requests=1"),))


@pytest.mark.parametrize(
    "changes",
    [{"kind": Kind.RAISED}, {"kind": Kind.UNEXPECTED_REJECTION}, {"kernel": ""}, {"step": -1, "kernel": ""}],
    ids=["raised", "rejected", "nothing launched", "died before its first step"],
)
def test_a_case_in_which_no_kernel_ran_reaches_nothing(changes: dict[str, Any]) -> None:
    novelty = Novelty(lambda _: FakeSpace())
    assert novelty.of(decode(10), Verdict(observations=(replace(observed(), **changes),))) is None
    assert novelty.of(decode(10), passed()) is not None


def test_steps_before_one_that_raises_reach_their_pairs() -> None:
    def requests_of_last(case: Case) -> int:
        return 1 << len(case.steps[-1].requests)

    space = FakeSpace(requests_of_last, lambda bits: (("a", f"requests={bits.bit_length() - 1}"),))
    case = replace(decode(10), steps=(*decode(10).steps, *decode(20, 30).steps))
    for step, reached in ((1, "requests=1"), (2, "requests=2")):
        raised = replace(observed(Kind.RAISED), step=step)
        news = Novelty(lambda _: space).of(case, Verdict(observations=(raised,)))
        assert news is not None
        assert news.pairs == (("a", reached),)


def test_a_case_that_was_rejected_reaches_nothing() -> None:
    novelty = Novelty(lambda _: FakeSpace())
    assert novelty.of(decode(10), Verdict(unsupported="no decode")) is None
    assert novelty.of(decode(10), passed()) is not None


def test_backends_reach_pairs_for_themselves() -> None:
    novelty = Novelty(lambda _: FakeSpace())
    assert novelty.of(decode(10), passed()) is not None
    other = Case(backend="other", geometry=decode(10).geometry, steps=decode(10).steps)
    assert novelty.of(other, passed()) is not None


def test_a_margin_is_a_record_if_it_is_larger_by_a_tenth_and_not_small() -> None:
    novelty = Novelty(lambda _: FakeSpace(no_pairs))
    margins = (0.2, 0.4, 0.43, 0.45, 0.44, 0.6)
    sent = [novelty.of(decode(10), passed(T1=margin)) for margin in margins]
    assert [news.margins.get("T1") if news else None for news in sent] == [None, 0.4, None, 0.45, None, 0.6]


def test_each_tier_has_its_own_record() -> None:
    novelty = Novelty(lambda _: FakeSpace(no_pairs))
    assert novelty.of(decode(10), passed(T1=0.8)) is not None
    news = novelty.of(decode(10), passed(T1=0.8, T2=0.5))
    assert news is not None
    assert news.margins == {"T2": 0.5}


def test_pairs_reached_by_one_slice_are_not_new_to_the_next() -> None:
    novelty = Novelty(lambda _: FakeSpace())
    first, second = news_of(novelty, seed=1), news_of(novelty, seed=2)
    reached = [pair for news in (*first, *second) for pair in news.pairs]
    assert len(first) > 5
    assert len(reached) == len(set(reached)) <= 12


def test_replays_reach_pairs_like_drawn_cases() -> None:
    novelty = Novelty(lambda _: FakeSpace())
    replays = tuple(Replay(case=decode(length)) for length in (10, 20, 60))
    assert [news.case for news in news_of(novelty, replays=replays)] == [decode(10), decode(60)]
