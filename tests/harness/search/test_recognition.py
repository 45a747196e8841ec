"""Failures that the ledger or a known cause accounts for cost one run, and hide no others."""

from collections.abc import Collection

import pytest
from fake_causes import MODES, Fault, FaultyJudge, featured, featured_cases, hunted
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.reduce.ablation import ablations, features_in
from attnfuzz.harness.search import recognition
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import AnyMessage, Recognized, Replay, Suspect, Tally
from attnfuzz.harness.search.rare_deaths import RareDeaths
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.device import Device
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.geometry import KvLayout

SINKS_DIE = Fault(needs=("sinks",), kinds=(Kind.MISALIGNED,))
MANY = st.builds(Case.reseeded, featured_cases(), st.integers(0, 1 << 40))
ENTRY = Entry(backend="fake", kind=Kind.MISALIGNED, features=("sinks",), reason="sinks are read out of bounds")


@pytest.fixture(autouse=True)
def settle_none_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "IN_FULL", 1 << 60)


class Dying(FaultyJudge):
    """A death hides all other failures of its case."""

    def verdict(self, case: Case) -> Verdict:
        verdict = super().verdict(case)
        deaths = tuple(each for each in verdict.failures if each.kind in DEATHS)
        return replace(verdict, observations=deaths or verdict.observations)


def counted(sent: Collection[AnyMessage]) -> dict[int, Recognized]:
    return sum((each for each in sent if isinstance(each, Tally)), Tally()).recognized


def test_a_failure_that_passes_without_the_feature_of_an_entry_is_known_after_one_run() -> None:
    judge = Dying(SINKS_DIE)
    done, sent = hunt(judge, MANY, ledger=(ENTRY,), examples=60)
    with_sinks = sum(case.geometry.sinks for case in judge.judged)
    assert not [each for each in sent if isinstance(each, Suspect)]
    assert counted(sent) == {1: Recognized(passed=with_sinks)}
    assert (done.tally.searched, done.tally.cases, done.tally.deaths) == (60, 60 + with_sinks, with_sinks)


def test_a_fault_beneath_a_known_one_is_found_without_its_feature() -> None:
    judge = Dying(SINKS_DIE, Fault(needs=("window",), kinds=(Kind.OUTPUT_MISMATCH,)))
    always = st.just(featured(window=3, sinks=True))
    (found,) = caught(hunt(judge, always, ledger=(ENTRY,), examples=1)[1])
    assert (found.observation.kind, found.needs) == (Kind.OUTPUT_MISMATCH, ("window",))


def test_known_failures_that_hide_each_other_are_counted_and_none_is_settled() -> None:
    judge = Dying(SINKS_DIE, Fault(needs=("window",), kinds=(Kind.OUTPUT_MISMATCH,)))
    other = Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, features=("window",), reason="windows are ignored")
    sent = hunt(judge, st.just(featured(window=3, sinks=True)), ledger=(ENTRY, other), examples=1)[1]
    assert not [each for each in sent if isinstance(each, Suspect)]
    assert counted(sent) == {1: Recognized(passed=1), 2: Recognized(passed=1)}


def test_a_failure_that_can_t_be_run_without_the_feature_of_an_entry_is_settled_and_counted() -> None:
    judge = Dying(SINKS_DIE, refuses=lambda case: not case.geometry.sinks)
    sent = hunt(judge, st.just(featured(sinks=True)), ledger=(ENTRY,), examples=1)[1]
    assert caught(sent)
    assert counted(sent) == {1: Recognized(refused=1)}


def test_a_kept_case_is_searched_beneath_its_known_failure() -> None:
    judge = Dying(SINKS_DIE, Fault(needs=("window",), kinds=(Kind.OUTPUT_MISMATCH,)))
    kept = (Replay(case=featured(window=3, sinks=True)),)
    (found,) = caught(hunt(judge, ledger=(ENTRY,), replays=kept)[1])
    assert (found.observation.kind, found.needs) == (Kind.OUTPUT_MISMATCH, ("window",))


def test_failures_that_an_entry_matches_and_that_do_not_need_its_feature_are_counted_and_settled() -> None:
    judge = Dying(Fault(kinds=(Kind.MISALIGNED,)))
    sent = hunt(judge, st.just(featured(sinks=True)), ledger=(ENTRY,), examples=1)[1]
    assert [each.needs for each in caught(sent)] == [()]
    assert counted(sent) == {1: Recognized(beneath=1)}


@pytest.mark.parametrize(("needs", "counts"), [((), Recognized(beneath=1)), (("sinks",), Recognized(passed=1))])
def test_a_failure_counts_for_the_first_of_the_entries_that_match_it(
    needs: Collection[str], counts: Recognized
) -> None:
    judge = Dying(Fault(needs=needs, kinds=(Kind.MISALIGNED,)))
    ledger = (ENTRY, replace(ENTRY, kind=None))
    assert counted(hunt(judge, st.just(featured(sinks=True)), ledger=ledger, examples=1)[1]) == {1: counts}


@pytest.mark.parametrize(("needs", "elsewhere"), [(("sinks",), 0), (("window",), 1)])
def test_one_failure_of_some_is_settled_in_full_and_shows_an_entry_that_matched_by_chance(
    monkeypatch: pytest.MonkeyPatch, needs: Collection[str], elsewhere: int
) -> None:
    monkeypatch.setattr(recognition, "IN_FULL", 1)
    judge = Dying(Fault(needs=needs, kinds=(Kind.MISALIGNED,)))
    sent = hunt(judge, st.just(featured(window=3, sinks=True)), ledger=(ENTRY,), examples=1)[1]
    assert [each.needs for each in caught(sent)] == [needs]
    assert counted(sent) == {1: Recognized(agreed=1 - elsewhere, elsewhere=elsewhere)}


def test_an_entry_without_features_is_settled() -> None:
    entry = Entry(backend="fake", kind=Kind.MISALIGNED, reason="every call dies")
    sent = hunt(Dying(Fault(kinds=(Kind.MISALIGNED,))), featured_cases(), ledger=(entry,), examples=1)[1]
    assert caught(sent)
    assert counted(sent) == {}


def cause_of_sinks(kind: Kind) -> KnownCause:
    """A cause found in decode, whose failures need sinks."""
    case = featured(mode=Mode.DECODE, sinks=True)
    (failure,) = FaultyJudge(Fault(needs=("sinks",), kinds=(kind,))).verdict(case).failures
    return KnownCause(name="sinks", case=case, fingerprint=Fingerprint.of("fake", failure), needs=("sinks",))


@pytest.mark.parametrize("kind", [Kind.MISALIGNED, Kind.OUTPUT_MISMATCH])
def test_a_known_cause_in_another_mode_is_known_after_one_run(kind: Kind) -> None:
    known = cause_of_sinks(kind)
    judge = Dying(Fault(needs=("sinks",), kinds=(kind,)))
    sent = hunted(judge, causes=(known,), known=(known.fingerprint,))
    assert not caught(sent)
    assert counted(sent)[recognition.OF_CAUSES].passed


def test_a_failure_that_needs_more_than_a_known_cause_is_settled() -> None:
    known = cause_of_sinks(Kind.OUTPUT_MISMATCH)
    judge = Dying(Fault(needs=("sinks", "window"), kinds=(Kind.OUTPUT_MISMATCH,), modes=(Mode.EXTEND,)))
    (found,) = caught(hunted(judge, causes=(known,), known=(known.fingerprint,)))
    assert found.needs == ("sinks", "window")


def test_a_failure_that_another_job_is_settling_is_left_to_it() -> None:
    asked: list[Fingerprint] = []

    def refuse(fingerprint: Fingerprint) -> bool:
        asked.append(fingerprint)
        return False

    judge = FaultyJudge(Fault(needs=("sinks",), modes=(Mode.DECODE,)))
    done, sent = hunt(judge, MANY, claim=refuse, examples=60)
    assert not [each for each in sent if isinstance(each, Suspect)]
    assert done.tally.cases == done.tally.searched == 60
    assert len(asked) == 1


GPU = Capability(device=Device.CUDA, modes=MODES, layouts=(KvLayout.HND,), windows=True, sinks=True, soft_cap=True)


@pytest.mark.slow
@pytest.mark.parametrize("device", Device)
def test_features_of_known_deaths_are_drawn_in_few_cases_on_a_gpu(device: Device) -> None:
    judge, examples = Dying(SINKS_DIE), 200
    hunt(judge, MANY, ledger=(ENTRY,), capability=replace(GPU, device=device), examples=examples)
    deadly = sum(case.geometry.sinks for case in judge.judged)
    assert (0 < deadly <= 0.02 * examples) if device is Device.CUDA else deadly > 0.2 * examples


def test_which_features_of_a_group_kill_a_worker_is_learned() -> None:
    family = Entry(backend="fake", features=("geometry",), reason="some features of the geometry kill")
    judge, examples = Dying(SINKS_DIE), 200
    assert "sinks" in TABLE.groups["geometry"]
    hunt(judge, MANY, ledger=(family,), capability=GPU, examples=examples)
    assert 0 < sum(case.geometry.sinks for case in judge.judged) <= 8 + 0.02 * examples


@pytest.mark.slow
def test_a_feature_is_taken_away_with_a_form_that_depends_on_it() -> None:
    """No case without sinks passes them in 16 bits."""
    judge = Dying(SINKS_DIE)
    case = featured(sinks=True).having(arguments=(ArgumentForm.SINKS_16_BITS,))
    sent = hunt(judge, st.just(case), ledger=(ENTRY,), examples=1)[1]
    assert counted(sent) == {1: Recognized(passed=1)}
    assert judge.judged[-1] == featured()


@pytest.mark.slow
def test_every_feature_of_a_known_death_is_drawn_rarely() -> None:
    """In so few cases that none keeps it, for each feature that they have and that can be taken away."""
    cases: list[Case] = []
    capability = resolve("trtllm_mha").capability
    run_examples(drawn_cases("trtllm_mha"), cases.append, examples=20, seed_of=1)

    def allowed(case: Case) -> bool:
        return capability.why_not(case) is None

    shown = [(case, features_in(case)) for case in cases]
    avoided = 0
    for name, feature in TABLE.features.items():
        having = [case for case, features in shown if feature in features]
        removable = [case for case in having if any(ablations(case, allowed=allowed, among={feature}))]
        deaths = RareDeaths([Entry(backend="trtllm_mha", kind=Kind.HANG, features=(name,), reason="hangs")])
        left = [case for case in having if feature in features_in(deaths.instead_of(case, (), allowed))]
        assert len(left) <= len(having) - len(removable), name
        avoided += bool(removable)
    assert avoided > 40
