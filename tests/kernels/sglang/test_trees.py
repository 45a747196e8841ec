"""The tree of drafts of a server: a chain has one branch, and a tree is as deep as its deepest draft token."""

from harness_cases import GEOMETRY
from loaded_tree import served_case

from attnfuzz.kernels.sglang.batch import verify_mask
from attnfuzz.kernels.sglang.trees import draft_depth, topk_of
from attnfuzz.reference.case import Mask, Mode, Request, Step
from attnfuzz.reference.masks import mask_of

_VERIFY = Step(
    mode=Mode.TARGET_VERIFY,
    requests=(Request(0, 4, 9), Request(1, 4, 4)),
    padded_tokens=8,
    tokens_per_request=4,
)


def test_a_chain_of_drafts_is_one_step_shorter() -> None:
    case = served_case(GEOMETRY, _VERIFY)
    assert (topk_of(case), draft_depth(case)) == (1, 3)


def test_a_tree_is_drafted_in_as_many_steps_as_it_is_deep() -> None:
    case = served_case(GEOMETRY, _VERIFY, mask=Mask.TREE)
    masks = [mask_of(case, _VERIFY, request) for request in _VERIFY.requests]
    ancestors = [mask[:, -4:].sum(dim=1).max().item() for mask in masks if mask is not None]
    assert topk_of(case) > 1
    assert draft_depth(case) == max(ancestors) - 1


def test_the_mask_of_a_chain_has_the_prefix_and_the_drafts_before_for_each_request() -> None:
    mask = verify_mask(served_case(GEOMETRY, _VERIFY), _VERIFY)
    assert mask.shape == (4 * 9 + 4 * 4,)
    assert mask[: 4 * 9].view(4, 9).sum(dim=1).tolist() == [6, 7, 8, 9]
    assert mask[4 * 9 :].view(4, 4).sum(dim=1).tolist() == [1, 2, 3, 4]
