"""What explains a failure is confirmed by further runs of the case: planted defects get their own names, or none."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.inside.explained import explained
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.confirm import STATISTICAL
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect, Layer
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Request, Tombstone

FOLDER = Path(__file__).parents[2] / "defects"
BY_NAME = {defect.name: defect for defect in DEFECTS}


def pinned(defect: Defect) -> AnyCase:
    pin = load_pin(FOLDER, defect.name)
    assert pin is not None
    return pin.case


def attention(name: str) -> Case:
    """The pinned case of a defect of attention."""
    case = pinned(BY_NAME[name])
    assert isinstance(case, Case)
    return case


def wrong_number(verdict: Verdict) -> Observation:
    return next(each for each in verdict.failures if each.kind in STATISTICAL and each.row is not None)


def explanation(name: str) -> str:
    """What explains the pinned case of a defect, on one line. It runs in this process, which none of these ends."""
    return explanation_of(attention(name), name)


def explanation_of(case: Case, name: str) -> str:
    resolve(case.backend).prepare(lambda _: None)
    found = wrong_number(explained(Task(case=case, backend=case.backend, explain=True), lambda _: None))
    assert bool(found.mistakes) == (len(found.message.splitlines()) > 1)
    assert set(found.mistakes) <= set(BY_NAME[name].explained_by)
    return " ".join(found.message.splitlines()[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("window_one_short", "as if the window were one key narrower"),
        ("split_remainder_dropped", "as if the request's last key were missing"),
        ("sum_not_rescaled", ""),
        ("merge_in_base_e", "as if the keys before the step's own tokens and those tokens were merged by exp of LSEs"),
        ("sink_scaled_as_a_logit", "as if the sink were multiplied by the scale of the logits"),
        ("lengths_of_first_replay", "the kernel follows its call: its request 0 has 1 keys instead of 2"),
        (
            "columns_of_first_request_refreshed",
            "the kernel follows its call: column 0 of row 1 of its page table is page 0, which holds none",
        ),
    ],
)
def test_a_planted_defect_gets_its_own_name(name: str, words: str) -> None:
    assert explanation(name).startswith(words) if words else explanation(name) == ""


@pytest.mark.slow
def test_pages_before_the_window_are_no_mistake() -> None:
    """They were freed: the table has page 0 in their place, where the request has a key."""
    case = attention("window_size_for_window_left")
    case = replace(
        case,
        geometry=replace(case.geometry, page_size=4),
        pages=replace(case.pages, tombstone=Tombstone.NULL),
        steps=(replace(case.steps[0], requests=(Request(slot=0, q_len=1, kv_len=5),)),),
    )
    words = explanation_of(case, "window_size_for_window_left")
    assert words == "the kernel follows its call: window_left is 1 instead of 0"


@pytest.mark.long
@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS if defect.layer is not Layer.CONCURRENCY])
def test_no_planted_defect_is_explained_wrongly(runner: Runner, name: str) -> None:
    case = pinned(BY_NAME[name])
    assert case.backend == backend_name(BY_NAME[name])
    for failure in runner.explained(case, runner.verdict(case)).failures:
        assert not failure.mistakes or set(failure.mistakes) & set(BY_NAME[name].explained_by), failure.message
