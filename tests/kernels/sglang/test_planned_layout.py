"""A replay that is planned for another layout than its graph has."""

from types import SimpleNamespace

from attnfuzz.kernels.sglang.graphs import layout_breach, planned_q_len


def test_the_planned_query_length_is_read_from_a_layout() -> None:
    assert planned_q_len(SimpleNamespace(max_seq_len_q=4, sum_seq_lens_q=8, max_seq_len_k=100)) == 4
    assert planned_q_len(SimpleNamespace(max_seq_len_q=None)) is None
    assert planned_q_len(None) is None


def test_another_layout_at_the_replay_is_a_breach_with_both_numbers() -> None:
    breach = layout_breach(4, 1)
    assert breach is not None
    assert "is 1 in the plan of the replay and 4 in the graph" in breach


def test_the_same_layout_is_none() -> None:
    assert layout_breach(4, 4) is None
    assert layout_breach(None, 4) is None
    assert layout_breach(4, None) is None
