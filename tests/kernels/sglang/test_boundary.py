"""What a call breaks before it is made, and a replay that is planned for another layout than its graph has."""

from types import SimpleNamespace

from entry_point_calls import fmha_v2_call, halves

from attnfuzz.kernels.sglang import boundary


def test_a_layout_is_what_says_how_queries_are_padded() -> None:
    metadata = SimpleNamespace(max_seq_len_q=4, sum_seq_lens_q=8, max_seq_len_k=100)
    assert boundary.frozen_layout(metadata) == {"max_seq_len_q": 4}
    assert boundary.frozen_layout(SimpleNamespace(max_seq_len_q=None)) == {}


def test_another_layout_at_the_replay_is_a_breach_with_both_numbers() -> None:
    (breach,) = boundary.layout_breaches({"max_seq_len_q": 4}, SimpleNamespace(max_seq_len_q=1, sum_seq_lens_q=2))
    assert breach.arguments == ("max_seq_len_q",)
    assert "is 1 in the plan of the replay and 4 in the graph" in breach.text


def test_the_same_layout_is_none() -> None:
    assert list(boundary.layout_breaches({"max_seq_len_q": 4}, SimpleNamespace(max_seq_len_q=4))) == []


def test_a_function_that_is_not_known_has_no_duties() -> None:
    assert boundary.breaches("double_kernel", {}) == ()


def test_a_pair_within_an_argument_is_held_to_the_kernels_contract() -> None:
    assert boundary.breaches("trtllm_fmha_v2_prefill", fmha_v2_call(**halves())) == ()
    (breach,) = boundary.breaches("trtllm_fmha_v2_prefill", fmha_v2_call(**halves(1)))
    assert breach.arguments == ("block_tables",)
