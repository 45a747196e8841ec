"""Edits and features of recurrent state."""

from msgspec.structs import replace

from attnfuzz.harness.families.recurrent import RECURRENT
from attnfuzz.reference.recurrent.case import (
    PaddedRow,
    Stale,
    StateCase,
    StateMode,
    StateOp,
    StateRow,
    StateShape,
    StateStep,
    StateValues,
)
from attnfuzz.reference.recurrent.edits import EDITS
from attnfuzz.reference.recurrent.features import STATE_TABLE
from attnfuzz.reference.validity import ImpossibleCase

LARGE = StateCase(
    backend="native:gated_delta_rule",
    op=StateOp.GATED_DELTA,
    shape=StateShape(heads=2, value_heads=4, key_dim=16, value_dim=8),
    steps=(
        StateStep(StateMode.PREFILL, (StateRow(0, 65, initial=False), StateRow(1, 1), StateRow(2, 0)), 2),
        StateStep(StateMode.VERIFY, (StateRow(1, 3), StateRow(0, 2)), 1, replayed=True),
        StateStep(StateMode.VERIFY, (StateRow(1, 3, accepted=3), StateRow(0, 1, accepted=0))),
        StateStep(StateMode.PREFILL, (StateRow(0, 64, initial=False),)),
    ),
    drafts=2,
    move=True,
    gap=16,
    scattered=True,
    padded_row=PaddedRow.DUMMY,
    stale=Stale.NAN,
    normed=True,
    strided=True,
    values=StateValues.ALIKE,
)


def possible(case: StateCase) -> bool:
    try:
        case.validate()
    except ImpossibleCase:
        return False
    return True


def test_edits_lead_to_the_smallest_case() -> None:
    case, least = LARGE, None
    case.validate()
    while case != least:
        least = case
        case = next((each for edit in EDITS for each in edit(case) if each != case and possible(each)), case)
    assert (len(case.steps), case.lanes, case.drafts, case.shape.value_heads) == (1, 1, 0, 1)
    assert not {each.name for each in STATE_TABLE.features_in(case) if each.clue and not each.usual} - {"no requests"}


def test_each_removal_takes_its_feature_away() -> None:
    found = STATE_TABLE.features_in(LARGE)
    assert {"several accepted", "none accepted", "ragged verify", "moved states", "nan in stale slots"} <= {
        each.name for each in found
    }
    for feature in found:
        variants = [case for case in feature.removal(LARGE) if possible(case)]
        assert all(feature not in STATE_TABLE.features_in(case) for case in variants), feature.name


def test_a_description_names_the_steps_of_each_request() -> None:
    text = RECURRENT.describe(replace(LARGE, steps=LARGE.steps[1:3]))
    assert "step 0    replayed verify: lane 1: 3 after 1 accepted; lane 0: 2 after 1 accepted, 1 padded" in text
    assert "step 1    verify: lane 1: 3 after 3 accepted; lane 0: 1 after 0 accepted" in text
