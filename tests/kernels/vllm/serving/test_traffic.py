"""The requests that follow from a case's steps, and what a model answers: tokens of their conversations."""

from types import SimpleNamespace
from typing import Any

import engine_cases
import pytest
from engine_cases import decode, extend
from msgspec.structs import replace
from small_cases import step

from attnfuzz.kernels.vllm.serving.traffic import SentRequest, Traffic, as_prompts
from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary
from attnfuzz.reference.case import Case, Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.serving import Serving

GEOMETRY = Geometry(
    q_heads=1, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=16, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)
DRAFTS = 3


def verify(*lengths: int) -> Step:
    """A verify of slots 0, 1, ... with these lengths."""
    return engine_cases.verify(*((slot, 1 + DRAFTS, length) for slot, length in enumerate(lengths)))


def traffic(*steps: Step) -> tuple[Traffic, Vocabulary]:
    case = Case(backend="vllm", geometry=GEOMETRY, steps=steps)
    spans, first = {}, 0
    for slot, length in case.slot_lengths().items():
        spans[slot] = range(first, first + length)
        first += length
    tokens: Any = SimpleNamespace(spans=spans, extra=range(first, first + 16))
    words = Vocabulary(tokens, {}, GEOMETRY.page_size)
    return Traffic(case, words, DRAFTS), words


def run(server: Traffic, sent: list[SentRequest], index: int) -> None:
    """Answer a forward that computes everything."""
    for each in sent:
        server.generated(each, server.answer(each, server.drafts(each, index)))


def test_a_prefill_sends_a_prompt_that_then_decodes_in_the_next_step() -> None:
    server, words = traffic(extend((0, 20, 20)), decode((0, 1, 21)))
    (sent,) = server.begin(0).sent
    assert sent.known == words.streams[0][:20]
    assert server.unfinished()
    run(server, [sent], 0)
    assert not server.unfinished()
    changes = server.begin(1)
    assert (changes.aborted, changes.sent) == ([], [])
    assert server.unfinished()


def test_a_prefix_is_first_computed_for_another_request() -> None:
    server, _ = traffic(extend((0, 5, 37)))
    (prefix,) = server.begin(0).sent
    assert (prefix.prompt, prefix.most) == (32, 33)
    run(server, [prefix], 0)
    assert prefix.ended
    assert server.unfinished()
    (whole,) = server.proceed().sent
    assert whole.prompt == 37


def test_a_request_that_has_gone_too_far_is_aborted_for_a_shorter_one() -> None:
    server, _ = traffic(extend((0, 40, 40)), decode((0, 1, 20)), extend((0, 41, 41)))
    (first,) = server.begin(0).sent
    run(server, [first], 0)
    changes = server.begin(1)
    assert changes.aborted == [first]
    assert [each.prompt for each in changes.sent] == [19]


@pytest.mark.parametrize("accepted", range(DRAFTS + 1))
def test_a_verify_accepts_the_drafts_that_the_next_step_says(accepted: int) -> None:
    server, words = traffic(verify(24), verify(24 + 1 + accepted))
    (sent,) = server.begin(0).sent
    run(server, [sent], 0)
    drafts = server.drafts(sent, 0)
    stream = words.streams[0]
    assert [draft == stream[21 + at] for at, draft in enumerate(drafts)] == [at < accepted for at in range(DRAFTS)]
    assert server.answer(sent, drafts) == stream[21 : 21 + accepted + 1]


def test_drafts_of_no_token_are_rejected() -> None:
    server, words = traffic(verify(24), verify(28))
    (sent,) = server.begin(0).sent
    run(server, [sent], 0)
    assert server.answer(sent, [-1, -1, -1]) == words.streams[0][21:22]


def test_a_request_ends_behind_the_last_token_of_its_conversation() -> None:
    server, words = traffic(extend((0, 20, 20)))
    (sent,) = server.begin(0).sent
    generated = server.answer(sent, ())
    assert generated not in ([token] for token in words.streams[0])
    server.generated(sent, generated)
    assert sent.ended
    assert not server.unfinished()


def test_a_token_at_another_position_is_that_of_no_slot() -> None:
    _, words = traffic(extend((0, 20, 20)))
    token = words.streams[0][7]
    assert words.row(token, 7) == token
    assert words.row(token, 8) >= 20
    assert words.row(words.stranger(7), 7) >= 20


def test_slots_share_the_ids_of_pages_in_common() -> None:
    tokens: Any = SimpleNamespace(spans={0: range(40), 1: range(40, 60)}, extra=range(60, 76))
    words = Vocabulary(tokens, {0: [1, 2, 3], 1: [1, 4]}, 16)
    assert words.streams[1] == [*range(16), *range(56, 60)]


def draft(*lengths: int) -> Step:
    """Decodes of a draft model for slots 0, 1, ... up to these lengths."""
    return step(Mode.DRAFT_DECODE, *((DRAFTS - 1, length) for length in lengths), stride=DRAFTS - 1)


@pytest.mark.parametrize("prefix", [1, 2, 20])
def test_draft_decodes_ask_for_a_forward_over_their_prefix(prefix: int) -> None:
    server, words = traffic(draft(prefix + DRAFTS - 1))
    (sent,) = server.begin(0).sent
    while len(sent.known) <= prefix:
        assert server.unfinished()
        server.generated(sent, server.answer(sent, ()))
    assert not server.unfinished()
    assert sent.known == words.streams[0][: prefix + 1]


@pytest.mark.parametrize("accepted", range(DRAFTS + 1))
def test_a_draft_model_generates_the_tokens_that_the_case_goes_on_with(accepted: int) -> None:
    server, words = traffic(verify(24), draft(21 + 1 + accepted + DRAFTS - 1), verify(40))
    (sent,) = server.begin(0).sent
    run(server, [sent], 0)
    stream, known = words.streams[0], len(sent.known)
    assert known == 21
    drafts = server.drafted(sent, sent.known, 0)
    assert [each == stream[known + at] for at, each in enumerate(drafts)] == [at < accepted for at in range(DRAFTS)]


def test_a_draft_model_generates_all_drafts_behind_the_end_of_a_conversation() -> None:
    server, words = traffic(draft(20))
    (sent,) = server.begin(0).sent
    drafts = server.drafted(sent, words.streams[0], 0)
    assert len(drafts) == DRAFTS
    assert not set(drafts) & set(words.streams[0])


@pytest.mark.parametrize(("budget", "q_lens"), [(0, [20, 40]), (32, [20, 32])])
def test_a_forward_is_as_large_as_the_prompts_of_a_step_within_the_budget(budget: int, q_lens: list[int]) -> None:
    decodes = Case(backend="vllm", geometry=GEOMETRY, steps=(decode((0, 1, 20), (1, 1, 40)),))
    (prompts,) = as_prompts(replace(decodes, serving=Serving(budget=budget))).steps
    assert prompts.mode is Mode.EXTEND
    assert [each.q_len for each in prompts.requests] == q_lens
    assert prompts.padded_tokens == sum(q_lens)
