"""The fp64 reference, against a scalar loop and against torch's own attention."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked_python import forked_processes
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_attention import attend_paged, gather_pages, to_base2

from attnfuzz.reference.attention import attend
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.problem import Answer, Problem
from attnfuzz.reference.row import row_weights

BLOCKS = (1, 13, 1 << 22)
"""What is held at once: key by key, in uneven chunks, and one padded batch."""

PEAK_MEMORY = """
import resource
import sys

import torch

from attnfuzz.reference.attention import attend
from attnfuzz.reference.problem import Problem

requests, queries, heads, keys, dim = map(int, sys.argv[1:])
query = torch.ones(requests * queries, heads, dim, dtype=torch.bfloat16)
key, value = (torch.ones(requests * keys, 1, dim, dtype=torch.bfloat16) for _ in "kv")
attend(Problem(query[:1], key[:2], value[:2], (1,), (2,), 1.0), moments=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attend(Problem(query, key, value, (queries,) * requests, (keys,) * requests, 1.0), moments=True)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
"""Prints by how many MiB the peak memory of a process grows while it answers."""


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    lengths = draw(st.lists(st.tuples(st.integers(0, 4), st.sampled_from((0, 1, 2, 3, 5, 9))), max_size=4))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    dim_qk, dim_vo = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from((torch.float64, torch.bfloat16, torch.float8_e4m3fn)))
    torch.manual_seed(draw(st.integers(0, 99)))
    tokens, keys = sum(q for q, _ in lengths), sum(kv for _, kv in lengths)
    return Problem(
        normal(tokens, kv_heads * group, dim_qk),
        normal(keys, kv_heads, dim_qk, dtype=dtype),
        normal(keys, kv_heads, dim_vo, dtype=dtype),
        tuple(q for q, _ in lengths),
        tuple(kv for _, kv in lengths),
        bmm1_scale=0.7,
        bmm2_scale=1.3,
        window_left=draw(st.sampled_from((-1, 0, 2))),
        causal=draw(st.booleans()),
        sinks=normal(kv_heads * group) if draw(st.booleans()) else None,
        soft_cap=draw(st.sampled_from((0.0, 1.5))),
    )


def by_scalar_loop(problem: Problem) -> tuple[list[float], list[float], list[int]]:
    """Flat out and lse, and visible keys of each token: the definition, one number at a time."""
    query, key, value = (tensor.double().tolist() for tensor in (problem.query, problem.key, problem.value))
    sinks = None if problem.sinks is None else problem.sinks.tolist()
    group = problem.query.shape[1] // problem.key.shape[1]
    outs, lses, visible = [], [], []
    token = start = 0
    for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True):
        for i in range(q_len):
            own = kv_len - q_len + i
            sees = [
                j
                for j in range(kv_len)
                if (j <= own or not problem.causal) and (problem.window_left < 0 or j >= own - problem.window_left)
            ]
            visible.append(len(sees))
            for head, q in enumerate(query[token]):
                kv_head = head // group
                weights = []
                for j in sees:
                    logit = problem.bmm1_scale * sum(a * b for a, b in zip(q, key[start + j][kv_head], strict=True))
                    if problem.soft_cap:
                        logit = problem.soft_cap * math.tanh(logit / problem.soft_cap)
                    weights.append(math.exp(logit))
                total = sum(weights) + (math.exp(sinks[head]) if sinks else 0.0)
                lses.append(math.log(total) if total else -math.inf)
                for d in range(problem.value.shape[2]):
                    mixed = sum(w * value[start + j][kv_head][d] for w, j in zip(weights, sees, strict=True))
                    outs.append(problem.bmm2_scale * mixed / total if sees else 0.0)
            token += 1
        start += kv_len
    return outs, lses, visible


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(BLOCKS))
def test_agrees_with_a_scalar_loop_however_it_is_cut_into_blocks(problem: Problem, block: int) -> None:
    outs, lses, visible = by_scalar_loop(problem)
    answer = attend(problem, block=block)
    torch.testing.assert_close(answer.out.flatten(), torch.tensor(outs, dtype=torch.float64), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(answer.lse.flatten(), torch.tensor(lses, dtype=torch.float64), rtol=1e-11, atol=1e-12)
    assert answer.visible.tolist() == visible


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from(BLOCKS))
def test_moments_are_computed_for_each_row_separately(problem: Problem, block: int) -> None:
    moments = attend(problem, moments=True, block=block).moments
    answer = attend(problem)
    assert moments is not None
    for token in range(problem.query.shape[0]):
        for head in range(problem.query.shape[1]):
            weights, values = row_weights(problem, token, head)
            out = weights @ values
            torch.testing.assert_close(answer.out[token, head], out)
            if not len(weights):
                continue
            squares = (weights * weights).unsqueeze(-1)
            torch.testing.assert_close(moments.power[token, head], (squares * values**2).sum(0))
            torch.testing.assert_close(moments.spread[token, head], (squares * (values - out) ** 2).sum(0))
            torch.testing.assert_close(moments.concentration[token, head], squares.sum())
            torch.testing.assert_close(moments.p_peak[token, head], weights.max())
            logits = weights.log() + answer.lse[token, head]
            gap = (weights * (logits.max() - logits)).sum() / weights.sum()
            torch.testing.assert_close(moments.gap[token, head], gap, rtol=1e-7, atol=1e-9)
            assert moments.magnitude[token, head] >= logits.abs().max() * (1 - 1e-9)


@pytest.mark.parametrize("block", BLOCKS[1:])
def test_agrees_with_torch_sdpa_in_fp64(block: int) -> None:
    torch.manual_seed(0)
    q_len, kv_len = 7, 33
    query, key, value = normal(q_len, 6, 16), normal(kv_len, 2, 16), normal(kv_len, 2, 24)
    visible = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), visible, scale=0.25, enable_gqa=True
    )
    answer = attend(Problem(query, key, value, (q_len,), (kv_len,), 0.25), block=block)
    torch.testing.assert_close(answer.out, expected.transpose(0, 1))


def test_logits_of_several_hundred_do_not_overflow() -> None:
    query, key, value = (
        torch.full((1, 1, 1), 30.0),
        torch.tensor([-30.0, 30.0]).view(2, 1, 1),
        torch.eye(2).view(2, 1, 2),
    )
    for block in (1, 16):
        answer = attend(Problem(query, key, value, (1,), (2,), 1.0), moments=True, block=block)
        assert answer.out.flatten().tolist() == pytest.approx([0.0, 1.0], abs=1e-300)
        assert answer.lse.item() == 900.0


def test_rows_that_see_nothing_are_zero_with_no_weight() -> None:
    answer = attend(Problem(normal(3, 2, 4), normal(2, 1, 4), normal(2, 1, 4), (3, 0), (2, 0), 1.0), moments=True)
    assert answer.visible.tolist() == [0, 1, 2]
    assert not answer.out[0].any()
    assert answer.lse[0].tolist() == [-math.inf, -math.inf]
    assert answer.moments is not None
    for name, moment in vars(answer.moments).items():
        assert torch.isfinite(moment).all(), name


@pytest.mark.parametrize("lengths", [((), ()), ((0,), (0,)), ((2,), (0,)), ((0, 1), (3, 0))])
def test_batches_without_queries_or_keys_are_answered(lengths: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    q_lens, kv_lens = lengths
    problem = Problem(normal(sum(q_lens), 2, 4), normal(sum(kv_lens), 1, 4), normal(sum(kv_lens), 1, 3), *lengths, 1.0)
    answer = attend(problem, moments=True)
    assert answer.out.shape == (sum(q_lens), 2, 3)
    assert not answer.out.any()
    assert (answer.lse == -math.inf).all()


def test_a_sink_is_the_lse_of_a_row_that_sees_nothing() -> None:
    problem = Problem(
        normal(1, 2, 4), normal(0, 1, 4), normal(0, 1, 4), (1,), (0,), 1.0, sinks=torch.tensor([0.5, -2.0])
    )
    answer = attend(problem)
    assert answer.lse.tolist() == [[0.5, -2.0]]
    assert not answer.out.any()


@pytest.mark.parametrize("layout", list(KvLayout))
def test_pages_are_read_in_the_order_of_the_table_and_nothing_else(layout: KvLayout) -> None:
    torch.manual_seed(0)
    kv_lens, page_size = (5, 0, 8), 4
    key, value = normal(13, 2, 3), normal(13, 2, 3)
    table = torch.tensor([[6, 2, -1], [-1, -1, -1], [0, 5, -1]], dtype=torch.int32)
    pools = []
    for packed in (key, value):
        pool = torch.full((7, page_size, 2, 3), math.nan, dtype=torch.float64)
        pool[6], pool[2, :1], pool[0], pool[5] = packed[:4], packed[4:5], packed[5:9], packed[9:]
        pools.append(pool if layout is KvLayout.NHD else pool.transpose(1, 2).contiguous())
    torch.testing.assert_close(gather_pages(pools[0], table, kv_lens, layout), key)
    query = normal(4, 4, 3)
    paged = attend_paged(
        query,
        pools[0],
        pools[1],
        table,
        layout=layout,
        q_lens=(2, 1, 1),
        kv_lens=kv_lens,
        bmm1_scale=0.5,
        window_left=3,
    )
    packed_answer = attend(Problem(query, key, value, (2, 1, 1), kv_lens, 0.5, window_left=3))
    assert torch.equal(paged.out, packed_answer.out)


def test_many_keys_are_read_in_chunks_with_the_same_answer() -> None:
    torch.manual_seed(0)
    keys = 4096
    problem = Problem(normal(2, 4, 8), normal(keys, 2, 8), normal(keys, 2, 8), (2,), (keys,), 0.4)
    whole, chunked = attend(problem, moments=True), attend(problem, moments=True, block=1000)
    torch.testing.assert_close(chunked.out, whole.out, rtol=1e-11, atol=1e-14)
    assert whole.moments is not None
    assert chunked.moments is not None
    for name, moment in vars(whole.moments).items():
        torch.testing.assert_close(getattr(chunked.moments, name), moment, rtol=1e-9, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(1, 64, 64, 8192, 16), (8, 1, 1, 16384, 128)], ids=["many logits", "many keys and values"]
)
def test_memory_is_bounded_for_long_sequences(shape: tuple[int, ...], tmp_path: Path) -> None:
    script = tmp_path / "peak_memory.py"
    script.write_text(PEAK_MEMORY)
    with forked_processes():
        ran = subprocess.run([sys.executable, script, *map(str, shape)], capture_output=True, text=True, check=True)
    grown = float(ran.stdout)
    assert grown < 256


def test_base_2_is_the_natural_lse_over_ln_2() -> None:
    answer: Answer = attend(Problem(torch.zeros(1, 1, 1), torch.ones(8, 1, 1), torch.ones(8, 1, 1), (1,), (8,), 1.0))
    assert to_base2(answer.lse).item() == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_lens": (1, 1)}, "give one each"),
        ({"q_lens": (3,)}, "add up to 3, but there are 2 queries"),
        ({"kv_lens": (4,)}, "add up to 4, but key has shape"),
        ({"value": torch.zeros(5, 2, 4)}, "and value"),
        ({"key": torch.zeros(5, 1, 3)}, "do not fit keys"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    fitting: dict[str, object] = {
        "query": torch.zeros(2, 2, 4),
        "key": torch.zeros(5, 1, 4),
        "value": torch.zeros(5, 1, 4),
        "q_lens": (2,),
        "kv_lens": (5,),
        "bmm1_scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        Problem(**{**fitting, **change})  # type: ignore[arg-type]
