"""XQA's packed draft mask, the bound on its workspace, and the modules of a bucket."""

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.kernels.gpu.direct import xqa
from attnfuzz.reference.case import Case, Mask, Mode


@pytest.mark.parametrize(("q_lens", "longest"), [([4, 4], 4), ([3, 0, 1], 3), ([40, 2], 40), ([], 4)])
def test_a_draft_token_sees_itself_and_those_before_it(q_lens: list[int], longest: int) -> None:
    mask = xqa.draft_mask(q_lens, longest)
    assert mask.dtype == torch.uint16
    assert mask.shape == (sum(q_lens), -(-longest // 32) * 2)
    rows = iter(mask.tolist())
    for q_len in q_lens:
        for token in range(q_len):
            words = next(rows)
            seen = [other for other in range(16 * len(words)) if words[other // 16] >> (other % 16) & 1]
            assert seen == list(range(token + 1))


def test_the_workspace_is_semaphores_and_scratch_that_grows_with_the_batch() -> None:
    def scratch(batch: int, q_len: int = 1) -> int:
        need = xqa.workspace_bytes(batch=batch, q_len=q_len, q_heads=8, kv_heads=4, head_dim=64, processors=132)
        assert need.semaphores == 8 << 20
        return need.scratch

    # 132 // 4 = 33 parts of a sequence for each of 4 KV heads; each keeps 2 rows of 64 elements in 16 bits, and two
    # floats for each of 32 rows. Behind them lies what four warps read that have nothing to merge.
    assert scratch(1) == 132 * (2 * 4 * 32 + 2 * 2 * 64) + (1 + 4) * 2 * 2 * 64
    assert scratch(1) == scratch(33) < scratch(34)
    assert scratch(1, q_len=4) > scratch(1)
    assert scratch(0) > 0


def test_a_bucket_has_a_module_for_each_query_length_and_ragged_ones_if_asked() -> None:
    plain, ragged = xqa.modules_of(xqa.BUCKETS[0], ragged=False), xqa.modules_of(xqa.BUCKETS[0], ragged=True)
    assert [module.name.rpartition(", ")[2] for module in plain] == ["one query", "4 draft tokens"]
    assert {module.name for module in ragged} - {module.name for module in plain} == {f"{plain[1].name}, ragged"}


def test_a_draft_token_of_a_tree_sees_its_ancestors() -> None:
    tree = torch.eye(3, dtype=torch.bool)
    tree[:, 0] = True
    assert xqa.draft_mask([3, 3], 3, {1: tree})[:, 0].tolist() == [0b1, 0b11, 0b111, 0b1, 0b11, 0b101]


def test_the_masks_among_drafts_leave_out_the_prefix_and_tokens_without_a_key() -> None:
    verify = step(Mode.TARGET_VERIFY, (4, 9), (4, 3), stride=4)
    case = Case(backend="any", geometry=HEADS, steps=(verify,), mask=Mask.TREE)
    among = xqa.among_drafts(case, verify)
    assert [tuple(mask.shape) for mask in among.values()] == [(4, 4), (4, 4)]
    assert among[0].diagonal().all()
    assert not among[1][:, 0].any()
    assert xqa.among_drafts(replace(case, mask=Mask.CAUSAL), verify) == {}
