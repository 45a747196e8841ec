"""What shrinking may cost."""

from campaign_events import checked
from fake_search import decode, observed
from msgspec import structs

from attnfuzz.harness.campaign.events import AlreadyFiled, CampaignResumed, SuspectSeen, UnconfirmedKept
from attnfuzz.harness.campaign.shrinking import FULL, GRANTED_SECONDS, NOTHING, SHARE, ShrinkingTime
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.fingerprint import Fingerprint

FINGERPRINT = Fingerprint.of("fake", observed())


def seen(at: float, length: int = 1) -> SuspectSeen:
    return SuspectSeen(at=at, fingerprint=FINGERPRINT, case=decode(length), observation=observed())


def settled(at: float) -> AlreadyFiled:
    return AlreadyFiled(at=at, fingerprint=FINGERPRINT, name="it")


def test_a_short_campaign_shrinks_as_far_as_it_can() -> None:
    assert ShrinkingTime(jobs=1).budget(0.0) == FULL


def test_no_more_than_its_share_of_the_time_is_spent() -> None:
    shrinking, at, spent = ShrinkingTime(jobs=1), 0.0, 0.0
    while at < 4000.0:
        budget = shrinking.budget(at)
        took = budget.seconds
        shrinking(seen(at))
        shrinking(settled(at + took))
        spent += took
        at += took + 1.0
    assert spent <= GRANTED_SECONDS + SHARE * at
    assert spent > SHARE * at


def test_no_budget_is_larger_than_the_most_that_a_slice_may_take() -> None:
    assert ShrinkingTime(jobs=1, most=7.0).budget(0.0).seconds == 7.0
    assert ShrinkingTime(jobs=1, most=700.0).budget(0.0) == FULL


def test_a_suspect_that_waits_for_its_slice_costs_nothing() -> None:
    shrinking = ShrinkingTime(jobs=1)
    shrinking(structs.replace(seen(0.0), left_over=True))
    assert shrinking.budget(300.0) == FULL
    shrinking(seen(300.0))
    shrinking(settled(310.0))
    assert shrinking.budget(310.0) == FULL


def test_time_spent_beyond_the_budget_is_deducted_later() -> None:
    shrinking = ShrinkingTime(jobs=1)
    shrinking(seen(0.0))
    assert shrinking.budget(100.0) == NOTHING, "what is not settled costs as well"
    shrinking(settled(300.0))
    assert shrinking.budget(300.0) == NOTHING
    assert shrinking.budget(2000.0) == FULL


def test_the_budget_grows_with_the_jobs() -> None:
    one, many = ShrinkingTime(jobs=1), ShrinkingTime(jobs=8)
    for shrinking in (one, many):
        shrinking(seen(0.0))
        shrinking(settled(80.0))
    assert one.budget(80.0) == NOTHING
    assert many.budget(80.0) == FULL


def test_a_suspect_that_another_job_checked_meanwhile_costs_no_more() -> None:
    shrinking = ShrinkingTime(jobs=1)
    shrinking(seen(0.0))
    shrinking(checked(decode(2), State.RETURNED, observation=observed()))
    assert shrinking.budget(1000.0) == FULL


def test_the_time_between_a_kill_and_the_next_try_counts_once() -> None:
    shrinking = ShrinkingTime(jobs=1)
    shrinking(seen(0.0))
    shrinking(CampaignResumed(at=10.0, time=0.0, environment={}, jobs=1, torn_bytes=0))
    shrinking(seen(10.0))
    shrinking(
        UnconfirmedKept(
            at=20.0, fingerprint=FINGERPRINT, case=decode(1), observation=observed(), path="", reason="lost"
        )
    )
    assert shrinking.budget(20.0).seconds == min(FULL.seconds, GRANTED_SECONDS + 5.0 - 20.0)
