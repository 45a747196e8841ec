"""torch's flex_attention and nested tensors as backends. Compiling takes minutes: that test is for `make test-long`."""

import pytest
import torch
from repetition import examples
from small_cases import drawn, lighter, passed, run, step

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries import torch_attention
from attnfuzz.kernels.libraries.torch_attention import (
    FLEX,
    FLEX_BUCKETS,
    NESTED,
    NESTED_BUCKETS,
    arrange_flexibly,
    attend_flexibly,
)
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case, Mode

pytestmark = [
    pytest.mark.skipif(NESTED.missing() is not None, reason="needs a newer torch"),
    # Of nested tensors (a prototype), and of the compiler.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("bucket", NESTED_BUCKETS[::5])
def test_decodes_of_nested_tensors_pass(bucket: Bucket) -> None:
    decode = step(Mode.DECODE, (1, 1), (1, 30), (1, 0), (1, 7))
    assert passed(Case(backend=NESTED.name, geometry=bucket.simplest, steps=(decode,))).rows


def test_a_batch_of_one_key_and_none_raises() -> None:
    decode = step(Mode.DECODE, (1, 1), (1, 0))
    (seen,) = run(Case(backend=NESTED.name, geometry=NESTED_BUCKETS[0].simplest, steps=(decode,))).observations
    assert (seen.kind, seen.place) == (Kind.RAISED, "RuntimeError")


def test_a_batch_without_any_key_is_unsupported() -> None:
    decode = step(Mode.DECODE, (1, 0), (1, 0))
    verdict = run(Case(backend=NESTED.name, geometry=NESTED_BUCKETS[0].simplest, steps=(decode,)))
    assert verdict.unsupported is not None


def test_the_mask_reads_places_of_a_fixed_length() -> None:
    cache = torch.zeros(3, 2, 1, 8)
    arranged = arrange_flexibly(
        query=torch.zeros(3, 1, 8),
        k_cache=cache,
        v_cache=cache,
        block_tables=torch.tensor([[1, 2], [0, 0]]),
        seq_lens=torch.tensor([3, 1]),
        cum_seq_lens_q=torch.tensor([0, 2, 3]),
        mask=torch.tensor([[True, False, True], [True, True, False], [False, True, True]]),
    )
    assert arranged["query_places"][:4].tolist() == [[0, 1], [0, 2], [1, 0], [-1, -1]]
    assert arranged["key_places"][:5].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [-2, -2]]
    assert len(arranged["query_places"]) == len(arranged["key_places"]) == 1 << 15
    assert (len(arranged["entries"]), arranged["columns"]) == (1 << 18, 3)
    assert arranged["entries"][:6].tolist() == [True, False, True, True, True, False]


def test_one_query_is_padded_to_two() -> None:
    cache = torch.zeros(1, 1, 1, 8)
    lengths = {"seq_lens": torch.tensor([1]), "cum_seq_lens_q": torch.tensor([0, 1])}
    table = torch.tensor([[0]])
    arranged = arrange_flexibly(query=torch.ones(1, 1, 8), k_cache=cache, v_cache=cache, block_tables=table, **lengths)
    assert [len(arranged[name]) for name in ("query", "key", "value")] == [2, 2, 2]
    assert arranged["query_places"][:2].tolist() == [[0, 0], [-1, -1]]


def test_without_keys_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "compiled_flex", lambda: pytest.fail("compiled"))
    out = torch.ones(2, 1, 8)
    attend_flexibly(
        out=out,
        query=torch.ones(2, 1, 8),
        key=torch.ones(0, 1, 8),
        value=torch.ones(0, 1, 8),
        query_places=torch.full((2, 2), -1),
        key_places=torch.full((2, 2), -2),
        entries=torch.zeros(2, dtype=torch.bool),
        columns=0,
        scale=1.0,
        window_left=-1,
        soft_cap=0.0,
    )
    assert not out.any()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert FLEX.missing() == "torch compiles flex_attention with no-such-compiler, which is not installed"


@pytest.mark.long
def test_drawn_cases_of_compiled_flex_attention_pass() -> None:
    for each in lighter(drawn(FLEX.name, 30)):
        assert run(each).observations == ()


@pytest.mark.slow
@examples(20, 100)
def test_drawn_decodes_pass_except_for_known_failures(count: int) -> None:
    for each in lighter(drawn(NESTED.name, count)):
        assert {seen.kind for seen in run(each).observations} <= {Kind.RAISED}


def test_geometries_are_few_since_each_is_compiled() -> None:
    assert len(FLEX_BUCKETS) == 3
    assert all(len(bucket.heads) == 1 for bucket in FLEX_BUCKETS)
