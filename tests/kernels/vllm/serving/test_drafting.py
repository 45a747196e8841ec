"""The tokens that a draft model's forwards write and attend to: each position has the next token's key."""

from types import SimpleNamespace
from typing import Any

import pytest

from attnfuzz.kernels.vllm.serving.drafting import DraftedTokens
from attnfuzz.kernels.vllm.serving.scheduled_pool import ScheduledTokens
from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary

DRAFTS = 3
TOKENS: Any = SimpleNamespace(spans={0: range(100)}, extra=range(100, 116))
WORDS = Vocabulary(TOKENS, {}, 16)


def scheduled(begin: int, new: int) -> ScheduledTokens:
    return ScheduledTokens(range(begin + new), new, [1, 2, 3])


def after(chunk: ScheduledTokens, tokens: int, *, kept: bool = True) -> DraftedTokens:
    """The forwards after a chunk that leaves a request with so many tokens."""
    return DraftedTokens.after(chunk, range(tokens + DRAFTS), DRAFTS, WORDS, kept=kept)


@pytest.mark.parametrize("accepted", range(DRAFTS + 1))
def test_a_verify_is_followed_by_its_accepted_tokens_and_by_decodes(accepted: int) -> None:
    known, computed = 21 + 1 + accepted, 20
    drafted = after(scheduled(computed, 1 + DRAFTS), known)
    assert drafted.first.rows == list(range(1, known))
    assert drafted.first.new == 1 + accepted
    assert [list(each.rows) for each in drafted.decodes] == [
        list(range(1, known + decoded)) for decoded in range(1, DRAFTS)
    ]
    assert all(each.new == 1 for each in drafted.decodes)
    assert drafted.generated() == list(range(known, known + DRAFTS))


@pytest.mark.parametrize("accepted", range(DRAFTS + 1))
def test_the_places_of_rejected_drafts_may_hold_anything_unless_a_decode_writes_them(accepted: int) -> None:
    written = after(scheduled(20, 1 + DRAFTS), 22 + accepted).written()
    assert written.new == 1 + accepted + DRAFTS - 1
    assert written.beyond == (accepted == 0)


def test_decodes_within_a_prompt_are_not_expected_but_may_leave_something() -> None:
    drafted = after(scheduled(16, 16), 33, kept=False)
    assert drafted.decodes == ()
    written = drafted.written()
    assert (list(written.rows), written.new, written.beyond) == (list(range(1, 33)), 16, DRAFTS - 1)


def test_a_token_without_a_block_is_reported() -> None:
    with pytest.raises(RuntimeError, match="up to position 48 of a request that has 3 blocks of 16"):
        scheduled(0, 49).place(48, 16)
    assert scheduled(0, 48).place(47, 16) == (3, 15)
