"""Each planted defect is killed by a pinned case, as recorded; the correct backend passes it, and blinded judges do."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.defects.search import killer
from attnfuzz.harness.sandbox.check import TIMEOUT_SECONDS
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Layer
from attnfuzz.reference.any_case import AnyCase

FOLDER = Path(__file__).parents[2] / "defects"
BACKENDS = {defect.name: backend_name(defect) for defect in DEFECTS}
CORRECT = {defect.name: defect.backend for defect in DEFECTS}
LAYERS = {defect.name: defect.layer for defect in DEFECTS}
SOME = 8
"""Defects of each tier, and of guards, that blinded judges are run on."""
RACES = 50
"""Runs within which threads that race do so in another order."""
PINS = {name: pin for name in BACKENDS if (pin := load_pin(FOLDER, name)) is not None}
ONE_OF_A_KIND = set({(CORRECT[name], pin.killed_by, pin.kind): name for name, pin in PINS.items()}.values())
"""One defect for each backend, tier and kind of failure."""
NOWHERE = {"null pointer", "unmapped memory", "unknown address"}
"""What a fault's place is called when it belongs to no tensor on record."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for name in BACKENDS.values():
        resolve(name).prepare(lambda _: None)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Workers]:
    with Workers("attnfuzz.harness.entry:handle_case", preload=["attnfuzz.harness.entry:warm"]) as workers:
        yield workers


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Workers]:
    with Workers("plain_memory:handle", preload=["attnfuzz.harness.entry:warm"]) as workers:
        yield workers


def failures(workers: Workers, case: AnyCase, backend: str, *without: Tier) -> tuple[Observation, ...]:
    request = msgspec.json.encode(Task(case=case, backend=backend, without=without))
    answer = workers.run(request, timeout=TIMEOUT_SECONDS)
    if isinstance(answer, Death):
        return (explain(answer),)
    verdict = msgspec.json.decode(answer, type=Verdict)
    assert verdict.unsupported is None
    return verdict.failures


def test_every_defect_has_a_pinned_case() -> None:
    missing = BACKENDS.keys() - PINS.keys()
    assert not missing, f"no case is pinned: attnfuzz defects run {min(missing)} --pin tests/defects"


def test_every_pinned_case_belongs_to_a_defect() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= BACKENDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PINS)
def test_a_pinned_case_fails_on_its_defect_as_recorded(guarded: Workers, name: str) -> None:
    pin = PINS[name]
    for _ in range(RACES if LAYERS[name] is Layer.CONCURRENCY else 1):
        seen = [(killer(failure), failure.kind) for failure in failures(guarded, pin.case, BACKENDS[name])]
        if seen:
            break
    assert (pin.killed_by, pin.kind) in seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(ONE_OF_A_KIND, id="one of a kind"),
        pytest.param(PINS.keys() - ONE_OF_A_KIND, id="others", marks=pytest.mark.long),
    ],
)
def test_a_pinned_case_passes_on_the_correct_backend(guarded: Workers, names: set[str]) -> None:
    for name in sorted(names):
        assert failures(guarded, PINS[name].case, CORRECT[name]) == (), name


@pytest.mark.slow
@pytest.mark.parametrize("tier", Tier)
def test_a_tier_that_is_off_kills_nothing(guarded: Workers, tier: Tier) -> None:
    for name in [name for name, pin in PINS.items() if pin.killed_by == tier.value][:SOME]:
        assert tier not in {killer(seen) for seen in failures(guarded, PINS[name].case, BACKENDS[name], tier)}, name


@pytest.mark.slow
def test_without_guards_no_tensor_is_reported(unguarded: Workers) -> None:
    for name in [name for name, pin in PINS.items() if pin.killed_by == "guards"][:SOME]:
        # What an overrun leaves behind must not reach the next case.
        unguarded.renew()
        seen = failures(unguarded, PINS[name].case, BACKENDS[name])
        assert {each.place for each in seen if killer(each) == "guards"} <= NOWHERE, name
