"""Masks of cases: which keys each query sees, and that the answer weighs those alone."""

import math

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, LATENTS, step

from attnfuzz.harness.reduce.ablation import ablations
from attnfuzz.kernels.planning.packed_masks import flat_masks, masks_of_rows, packed_masks
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.reference.attention import attend
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mask, Mode, Request, Step
from attnfuzz.reference.case_file import decode, encode
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import applies, mask_of
from attnfuzz.reference.problem import Problem
from attnfuzz.reference.row import head_rows, row_weights, seen_positions
from attnfuzz.reference.validity import ImpossibleCase, validate

VERIFY = step(Mode.TARGET_VERIFY, (5, 20), (5, 3), stride=5)
EXTEND = step(Mode.EXTEND, (40, 60), (3, 0))


def case(mask: Mask, *steps: Step, seed: int = 1) -> Case:
    return Case(backend="any", geometry=HEADS, steps=steps or (VERIFY, EXTEND), mask=mask, seed=seed)


def mask_in(of: Case, index: int, request: int = 0) -> torch.Tensor:
    found = mask_of(of, of.steps[index], of.steps[index].requests[request])
    assert found is not None
    return found


def test_a_causal_case_has_no_masks_and_a_tree_is_one_of_verify_steps_alone() -> None:
    assert not any(applies(case(Mask.CAUSAL), each) for each in (VERIFY, EXTEND))
    assert [applies(case(Mask.TREE), each) for each in (VERIFY, EXTEND)] == [True, False]
    assert mask_of(case(Mask.TREE), EXTEND, EXTEND.requests[0]) is None


def test_a_full_mask_shows_all_keys() -> None:
    assert mask_in(case(Mask.FULL), 1).all()
    assert mask_in(case(Mask.FULL), 1, 1).shape == (3, 0)


def test_a_window_to_both_sides_ends_after_a_query_s_own_key() -> None:
    two_sided = replace(case(Mask.FULL), geometry=replace(HEADS, window_left=4, window_right=1))
    # The queries' own keys are 15 to 19, and with fewer keys than queries, -2 to 2.
    assert [row.nonzero().max().item() for row in mask_in(two_sided, 0)] == [16, 17, 18, 19, 19]
    assert [row.sum().item() for row in mask_in(two_sided, 0, 1)] == [0, 1, 2, 3, 3]
    assert "right window=cuts keys off" in TABLE.coverage_of(two_sided)


def test_a_window_ends_to_the_right_under_a_full_mask_alone() -> None:
    for mask, left in ((Mask.CAUSAL, 4), (Mask.FULL, -1)):
        with pytest.raises(ImpossibleCase, match=r"geometry\.window_right is 1: must be -1"):
            validate(replace(case(mask), geometry=replace(HEADS, window_left=left, window_right=1)))


def test_a_backend_may_have_windows_to_both_sides_and_no_other_beside_a_full_mask() -> None:
    can = Capability(layouts=(KvLayout.HND,), windows=True, masks=(Mask.CAUSAL, Mask.FULL), right_windows=True)
    one_sided = replace(case(Mask.FULL), geometry=replace(HEADS, window_left=4))
    two_sided = replace(one_sided, geometry=replace(one_sided.geometry, window_right=1))
    assert can.why_not(two_sided) is None
    assert can.why_not(one_sided) == "a sliding window with mask full"
    assert replace(can, right_windows=False).why_not(two_sided) == "a window to the right"


def test_the_right_end_of_a_window_is_removed_as_any_feature() -> None:
    two_sided = replace(case(Mask.FULL), geometry=replace(HEADS, window_left=4, window_right=1))
    removed = {each.feature.name: each.variants[0] for each in ablations(two_sided)}
    assert removed["right window"].geometry.window_right == -1
    assert removed["mask"].mask is Mask.CAUSAL
    assert removed["window"].geometry == HEADS
    for plainer in removed.values():
        validate(plainer)


def test_intervals_of_keys_have_ends_that_never_go_back() -> None:
    widths = set()
    for seed in range(20):
        mask = mask_in(case(Mask.INTERVALS, seed=seed), 1)
        ends = [(row.nonzero().min().item(), row.nonzero().max().item()) for row in mask]
        assert ends == sorted(ends)
        assert [last for _, last in ends] == sorted(last for _, last in ends)
        assert all(row.sum() == last - first + 1 for row, (first, last) in zip(mask, ends, strict=True))
        widths |= {last - first for first, last in ends}
    assert min(widths) == 0
    assert max(widths) > 15
    assert mask_in(case(Mask.INTERVALS), 1, 1).shape == (3, 0)


def test_a_draft_token_sees_the_prefix_and_its_ancestors() -> None:
    trees = [mask_in(case(Mask.TREE, seed=seed), 0) for seed in range(20)]
    for tree in trees:
        among = tree[:, 15:]
        assert tree[:, :15].all()
        assert among[:, 0].all()
        assert torch.equal(among, among.tril())
        for token in range(1, 5):
            # The parent is the last token that is seen before the own one, and all that it sees are ancestors.
            parent = int(among[token, :token].nonzero().max())
            assert torch.equal(among[token, :token], among[parent, :token])
    assert any(not torch.equal(tree[:, 15:], torch.ones(5, 5, dtype=torch.bool).tril()) for tree in trees)


def test_a_tree_of_a_request_with_fewer_keys_than_drafts_ends_with_its_last_key() -> None:
    tree = mask_in(case(Mask.TREE), 0, 1)
    assert tree.shape == (5, 3)
    assert not tree[:2].any()
    assert tree[2:].diagonal().all()


def test_rows_of_a_custom_mask_see_few_keys_some_or_all_and_some_rows_none_if_asked() -> None:
    for mask, least in ((Mask.CUSTOM, 1), (Mask.EMPTY_ROWS, 0)):
        seen = torch.cat([mask_in(case(mask, seed=seed), 1).sum(dim=1) for seed in range(5)])
        assert seen.min() == least
        assert seen.max() == 60
        assert (seen <= 6).float().mean() > 0.15
        assert ((seen > 6) & (seen < 60)).float().mean() > 0.2


@pytest.mark.parametrize("mask", [Mask.INTERVALS, Mask.TREE, Mask.CUSTOM, Mask.EMPTY_ROWS])
def test_the_mask_of_a_request_depends_neither_on_its_batch_nor_on_its_step(mask: Mask) -> None:
    alone = mask_in(case(mask), 0)
    other = replace(VERIFY, requests=(Request(1, 5, 9), *VERIFY.requests[:1]))
    assert torch.equal(mask_in(case(mask, EXTEND, other), 1, 1), alone)
    assert not torch.equal(mask_in(case(mask, seed=2), 0), alone)


def naive(problem: Problem, request: int, query: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys that a row sees, and its answer."""
    assert problem.masks is not None
    mask, first = problem.masks[request], sum(problem.kv_lens[:request])
    own = problem.kv_lens[request] - problem.q_lens[request] + query
    window = problem.window_left if problem.window_left >= 0 else 1 << 20
    seen = [key for key in range(problem.kv_lens[request]) if mask[query, key] and key >= own - window]
    rows = torch.tensor(seen, dtype=torch.int64) + first
    token = sum(problem.q_lens[:request]) + query
    key, value = (each[rows, head // problem.group] for each in (problem.key, problem.value))
    weights = torch.softmax(key @ problem.query[token, head] * problem.bmm1_scale, dim=0)
    return torch.tensor(seen), weights @ value


@pytest.mark.parametrize("window_left", [-1, 2])
def test_the_answer_weighs_the_keys_that_the_mask_and_the_window_leave(window_left: int) -> None:
    torch.manual_seed(0)
    q_lens, kv_lens = (3, 0, 6), (9, 2, 9)
    query, key = torch.randn(9, 4, 8, dtype=torch.float64), torch.randn(20, 2, 8, dtype=torch.float64)
    masks = tuple(torch.rand(*lengths) < 0.4 for lengths in zip(q_lens, kv_lens, strict=True))
    value = torch.randn(20, 2, 8, dtype=torch.float64)
    problem = Problem(query, key, value, q_lens, kv_lens, 0.3, window_left=window_left, causal=False, masks=masks)
    answer, in_blocks = attend(problem, moments=True), attend(problem, block=50)
    torch.testing.assert_close(in_blocks.out, answer.out)
    weighed = {
        (rows.tokens.start + i, rows.heads.start): rows.weights[i, 0]
        for rows in head_rows(problem, 30)
        for i in range(len(rows.weights))
    }
    for request, token, in_request in ((0, 0, 0), (0, 2, 2), (2, 3, 0), (2, 6, 3), (2, 8, 5)):
        for head in (0, 2):
            seen, out = naive(problem, request, in_request, head)
            assert answer.visible[token] == len(seen)
            assert torch.equal(seen_positions(problem, token), seen)
            torch.testing.assert_close(answer.out[token, head], out)
            weights, values = row_weights(problem, token, head)
            torch.testing.assert_close(weights @ values if len(seen) else torch.zeros_like(out), out)
            torch.testing.assert_close(weighed[token, head][seen], weights)
    empty = Problem(query[:1], key[:2], value[:2], (1,), (2,), 1.0, causal=False, masks=(torch.zeros(1, 2).bool(),))
    assert not attend(empty).out.any()
    assert (attend(empty).lse == -math.inf).all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_problem_needs_a_mask_of_the_right_shape_for_each_request_and_is_not_causal_then(*, causal: bool) -> None:
    tokens = torch.zeros(2, 1, 8)
    masks = (torch.ones(2, 2 if causal else 3, dtype=torch.bool),)
    with pytest.raises(ValueError, match=r"give .* causal=False"):
        Problem(tokens, tokens, tokens, (2,), (2,), 1.0, causal=causal, masks=masks)


def test_masks_are_packed_from_whole_bytes_on_with_the_lowest_bit_first() -> None:
    masks = [torch.tensor([[True, False, True], [True, True, False], [False, False, True]]), torch.ones(1, 2).bool()]
    bits, starts = packed_masks(masks)
    assert bits.tolist() == [0b00011101, 0b1, 0b11]
    assert starts.tolist() == [0, 2, 3]
    assert flat_masks(masks).tolist() == [True, False, True, True, True, False, False, False, True, True, True]


def test_padded_rows_of_a_plan_see_all_their_keys() -> None:
    of = case(Mask.CUSTOM, replace(VERIFY, padded_tokens=15))
    *_, padded = masks_of_rows(of, of.steps[0], Row.padded(of.steps[0]))
    assert padded.shape == (5, 6)
    assert padded.all()


def test_a_file_names_the_mask_unless_it_is_causal() -> None:
    assert b"mask" not in encode(case(Mask.CAUSAL))
    assert decode(encode(case(Mask.EMPTY_ROWS))) == case(Mask.EMPTY_ROWS)


def test_a_mask_needs_attention_without_latents_and_a_bounded_size() -> None:
    with pytest.raises(ImpossibleCase, match="mask is 'full': must be causal with latents"):
        validate(Case(backend="any", geometry=LATENTS, steps=(VERIFY,), mask=Mask.FULL))
    long = step(Mode.EXTEND, (1 << 10, 1 << 18), (1, 1))
    validate(case(Mask.CAUSAL, long))
    with pytest.raises(ImpossibleCase, match="the masks of a step is '268435457 entries'"):
        validate(case(Mask.CUSTOM, long))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"masks": (Mask.FULL,)}, "masks must include causal"),
        ({"masks": tuple(Mask), "latent": True}, "for attention without latents"),
        ({"masks": tuple(Mask), "writes": True, "empty_kv": False, "kv_shorter_than_q": False}, "without latents"),
    ],
)
def test_a_capability_has_masks_beside_the_causal_one_for_attention_alone(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Capability(modes=Mode.of_kernels(), **fields)  # type: ignore[arg-type]


def test_unsupported_masks_are_named() -> None:
    windowed = replace(case(Mask.TREE), geometry=replace(HEADS, window_left=3))
    can = Capability(layouts=(KvLayout.HND,), windows=True, masks=(Mask.CAUSAL, Mask.TREE))
    assert can.why_not(case(Mask.EMPTY_ROWS)) == "mask empty_rows"
    assert can.why_not(case(Mask.TREE)) is None
    assert can.why_not(windowed) == "a sliding window with mask tree"
    assert replace(can, windowed_masks=(Mask.TREE,)).why_not(windowed) is None
