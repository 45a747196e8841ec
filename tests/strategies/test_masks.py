"""Masks in drawn cases: each is drawn, where the backend has it, and stays the same in a related run."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.case import Case, Mask, Mode
from attnfuzz.reference.masks import mask_of
from attnfuzz.reference.related import related
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import features_of, impossible, pair
from attnfuzz.strategies.lean import Lean

Draw = Callable[[SearchStrategy[Case], int], list[Case]]

EAGER, MHA = (resolve(name).capability for name in ("torch_sdpa", "trtllm_mha"))
PLAIN = replace(EAGER, masks=(Mask.CAUSAL,), windowed_masks=(Mask.CAUSAL,))


@pytest.mark.slow
@pytest.mark.draws
def test_each_mask_has_a_share_of_the_cases(eager: list[Case]) -> None:
    counted = Counter(case.mask for case in eager)
    assert 0.25 <= counted[Mask.CAUSAL] / len(eager) <= 0.65
    assert all(counted[mask] >= 0.02 * len(eager) for mask in Mask)
    assert all(any(step.mode is Mode.TARGET_VERIFY for step in case.steps) for case in eager if case.mask is Mask.TREE)


@pytest.mark.slow
@pytest.mark.draws
def test_a_backend_without_masks_draws_causal_masks_alone(draw: Draw) -> None:
    drawn = draw(cases(PLAIN, "plain"), 60)
    assert {case.mask for case in drawn} == {Mask.CAUSAL}
    assert all("mask=causal" in features_of(case) for case in drawn)


@pytest.mark.slow
@pytest.mark.draws
def test_a_window_is_drawn_with_a_mask_only_if_the_backend_supports_both(draw: Draw) -> None:
    can = replace(EAGER, windowed_masks=(Mask.CAUSAL, Mask.FULL))
    drawn = draw(cases(can, "eager", Lean(("mask=custom", "window=cuts keys off"))), 80)
    assert all(can.can_run(case) for case in drawn)
    masks = {case.mask for case in drawn if case.geometry.window_left >= 0}
    assert masks <= {Mask.CAUSAL, Mask.FULL}
    assert any(case.mask is Mask.CUSTOM for case in drawn)


@pytest.mark.slow
@pytest.mark.draws
def test_the_requests_of_a_related_run_have_the_same_masks(eager: list[Case]) -> None:
    compared = 0
    for case in (case for case in eager[:300] if case.relation and case.mask is not Mask.CAUSAL):
        other = related(case)
        for step, at, positions in zip(case.steps, other.steps, other.positions, strict=True):
            if at is None:
                continue
            for request, position in zip(step.requests, positions, strict=True):
                there = other.case.steps[at]
                masks = mask_of(case, step, request), mask_of(other.case, there, there.requests[position])
                assert all(mask is None for mask in masks) or torch.equal(*masks)  # type: ignore[arg-type]
                compared += masks[0] is not None
    assert compared > 20


def test_pairs_with_a_mask_that_never_occur_have_their_reasons() -> None:
    assert impossible(MHA)[pair("mask=tree", "mode=target_verify")] == "the backend does not have this mask"
    assert impossible(EAGER)[pair("mask=tree", "mode=decode")] == "drafts are a tree in a verify step"
    assert pair("mask=custom", "window=cuts keys off") not in impossible(EAGER)
    windowless = impossible(replace(EAGER, windowed_masks=(Mask.CAUSAL,)))
    reason = "the backend has no windows beside this mask"
    assert windowless[pair("mask=custom", "window=cuts keys off")] == reason
    assert pair("mask=causal", "window=cuts keys off") not in windowless
