"""Factors of 0 and below, and steps without requests: possible, gated by capabilities, and answered by the formula."""

import math

import pytest
import torch
from msgspec.structs import replace

from attnfuzz.reference.arguments import ArgumentStanding
from attnfuzz.reference.attention import attend
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Granularity, Launch, Mode, Request, Scales, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import Edge, EdgeRule, edges_of
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.problem import Problem
from attnfuzz.reference.validity import ImpossibleCase, validate

STEP = Step(mode=Mode.DECODE, requests=(Request(slot=0, q_len=1, kv_len=3),), padded_tokens=1, tokens_per_request=1)
IDLE = replace(STEP, requests=(), padded_tokens=0)
CASE = Case(
    backend="any",
    geometry=Geometry(q_heads=2, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4),
    steps=(STEP,),
)
CAN = Capability(modes=(Mode.DECODE,), layouts=(KvLayout.HND,), kv_scales=True, padding=True)


@pytest.mark.parametrize(
    ("scales", "edge"),
    [
        (Scales(softmax=0.0), Edge.SOFTMAX_ZERO),
        (Scales(softmax=-0.6), Edge.SOFTMAX_NEGATIVE),
        (Scales(k=0.0), Edge.K_ZERO),
        (Scales(k=-0.6), Edge.K_NEGATIVE),
        (Scales(v=0.0), Edge.V_ZERO),
        (Scales(v=-0.6), Edge.V_NEGATIVE),
    ],
)
def test_a_factor_at_an_edge_needs_a_rule(scales: Scales, edge: Edge) -> None:
    case = replace(CASE, scales=scales)
    validate(case)
    assert edges_of(case) == (edge,)
    assert CAN.why_not(case) == edge
    assert replace(CAN, edges=(EdgeRule(edge),)).why_not(case) is None
    assert CAN.why_not(CASE) is None


@pytest.mark.parametrize("rows", [0, 2])
def test_an_idle_step_needs_a_rule(rows: int) -> None:
    case = replace(CASE, steps=(STEP, replace(IDLE, padded_tokens=rows)))
    validate(case)
    assert CAN.why_not(case) == Edge.IDLE
    assert replace(CAN, edges=(EdgeRule(Edge.IDLE),)).why_not(case) is None


def test_an_idle_step_may_be_a_replay() -> None:
    capture = replace(IDLE, padded_tokens=2, launch=Launch.CAPTURE)
    idle = replace(capture, launch=Launch.REPLAY)
    case = replace(CASE, steps=(capture, idle, STEP))
    validate(case)
    assert edges_of(case) == (Edge.IDLE,)
    can = replace(CAN, graph_modes=(Mode.DECODE,))
    assert can.why_not(case) == Edge.IDLE
    assert replace(can, edges=(EdgeRule(Edge.IDLE),)).why_not(case) is None


@pytest.mark.parametrize(
    ("impossible", "words"),
    [
        (replace(CASE, scales=Scales(softmax=math.inf)), "must be finite"),
        (replace(CASE, steps=(IDLE,)), "at least one step must run with requests"),
        (replace(CASE, steps=(STEP, replace(IDLE, launch=Launch.REPLAY, padded_tokens=1))), "needs an earlier capture"),
        (
            replace(
                CASE,
                geometry=replace(CASE.geometry, kv_dtype=DType.FLOAT8_E4M3),
                scales=Scales(k=0.0, granularity=Granularity.HEAD),
            ),
            "must be positive with tensors of scales",
        ),
    ],
)
def test_some_edges_have_no_answer(impossible: Case, words: str) -> None:
    with pytest.raises(ImpossibleCase, match=words):
        validate(impossible)


def test_a_word_has_a_source_and_silence_none() -> None:
    with pytest.raises(ValueError, match="give a source"):
        EdgeRule(Edge.IDLE, ArgumentStanding.PROMISED)
    with pytest.raises(ValueError, match="give a source"):
        EdgeRule(Edge.IDLE, source="a docstring")


def test_a_scale_of_0_weighs_all_visible_keys_alike() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 1, 8), torch.randn(5, 1, 8), torch.randn(5, 1, 8)
    answer = attend(Problem(query, key, value, (2,), (5,), 0.0), moments=True)
    assert torch.allclose(answer.out[1, 0], value.double().mean(dim=0)[0])
    assert torch.allclose(answer.out[0, 0], value[:4].double().mean(dim=0)[0])
    assert torch.allclose(answer.lse[:, 0], torch.tensor([4.0, 5.0], dtype=torch.float64).log())


def test_a_scale_below_0_is_one_of_negated_queries() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 1, 8), torch.randn(5, 1, 8), torch.randn(5, 1, 8)
    negative = attend(Problem(query, key, value, (2,), (5,), -0.6, -2.0))
    negated = attend(Problem(-query, key, value, (2,), (5,), 0.6, 2.0))
    assert torch.equal(negative.out, -negated.out)
    assert torch.equal(negative.lse, negated.lse)
