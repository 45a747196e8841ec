"""Calls at the edges of their arguments: an exception is a failure, due, or a refusal, by the word of the API."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from plain_attention import attend_call
from small_cases import drawn, run

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.reference.arguments import ArgumentStanding
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, Request, Scales, Step
from attnfuzz.reference.edges import Edge, EdgeRule, edges_of
from attnfuzz.reference.geometry import Geometry, KvLayout

HERE = f"{Path(__file__)}:"


def attend(*, out: Any, scale: float, **arguments: Any) -> None:
    """Attention by torch, at any scale, of any batch."""
    answer = attend_call(scale=scale, **arguments)
    out.zero_()
    out[: len(answer.out)] = answer.out.to(out.dtype)


def default_for_zero(*, scale: float, **arguments: Any) -> None:
    """As a function that takes 0 for no scale."""
    attend(scale=scale or arguments["query"].shape[-1] ** -0.5, **arguments)


def positive_only(*, scale: float, query: Any, **arguments: Any) -> None:
    """As a function that checks its arguments."""
    if scale <= 0 or not len(query):
        raise ValueError("scale must be positive, and query not empty")
    attend(scale=scale, query=query, **arguments)


def made(function: Any, standing: ArgumentStanding) -> FunctionBackend:
    source = "" if standing is ArgumentStanding.UNSAID else "a docstring"
    edges = (Edge.SOFTMAX_ZERO, Edge.SOFTMAX_NEGATIVE, Edge.IDLE)
    rules = tuple(EdgeRule(edge, standing, source) for edge in edges)
    can = Capability(modes=Mode.of_kernels(), layouts=(KvLayout.NHD,), padding=True, edges=rules)
    return FunctionBackend(function, capability=can)


GOOD = made(attend, ArgumentStanding.PROMISED)
DEFAULTS = made(default_for_zero, ArgumentStanding.UNSAID)
REFUSES = made(positive_only, ArgumentStanding.REFUSED)
REFUSES_UNSAID = made(positive_only, ArgumentStanding.UNSAID)
REFUSES_PROMISED = made(positive_only, ArgumentStanding.PROMISED)
ACCEPTS = made(attend, ArgumentStanding.REFUSED)


STEP = Step(mode=Mode.EXTEND, requests=(Request(slot=0, q_len=2, kv_len=5),), padded_tokens=2)
CASE = Case(
    backend="",
    geometry=Geometry(q_heads=2, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4, kv_layout=KvLayout.NHD),
    steps=(STEP,),
)
AT = {
    Edge.SOFTMAX_ZERO: replace(CASE, scales=Scales(softmax=0.0)),
    Edge.SOFTMAX_NEGATIVE: replace(CASE, scales=Scales(softmax=-0.6)),
    Edge.IDLE: replace(CASE, steps=(STEP, replace(STEP, requests=(), padded_tokens=0))),
}


def at(edge: Edge, name: str) -> Case:
    """A case of this edge alone."""
    return replace(AT[edge], backend=f"{HERE}{name}")


def kinds(edge: Edge, name: str) -> set[Kind]:
    return {observation.kind for observation in run(at(edge, name)).observations}


@pytest.mark.parametrize("edge", [Edge.SOFTMAX_ZERO, Edge.SOFTMAX_NEGATIVE, Edge.IDLE])
def test_an_edge_is_judged_by_its_standing(edge: Edge) -> None:
    assert not kinds(edge, "GOOD")
    assert not kinds(edge, "REFUSES")
    refused = run(at(edge, "REFUSES_UNSAID"))
    assert refused.unsupported is not None
    assert refused.unsupported.startswith(f"{edge} is refused")
    assert Kind.UNEXPECTED_REJECTION in kinds(edge, "REFUSES_PROMISED")
    assert Kind.RAISED in kinds(edge, "ACCEPTS")


def test_a_scale_of_0_that_is_taken_for_none_shows() -> None:
    assert kinds(Edge.SOFTMAX_ZERO, "DEFAULTS") == {Kind.OUTPUT_MISMATCH}
    assert not kinds(Edge.SOFTMAX_NEGATIVE, "DEFAULTS")


@pytest.mark.slow
def test_the_edges_of_a_capability_are_drawn() -> None:
    assert {edge for case in drawn(f"{HERE}GOOD", 120) for edge in edges_of(case)} == set(AT)


@pytest.mark.slow
def test_replays_without_requests_are_drawn_and_run() -> None:
    found = [case for case in drawn("trtllm_mha", 300) if any(map(_is_idle_replay, case.steps))]
    assert found
    assert not any(run(case).observations for case in found)


def _is_idle_replay(step: Step) -> bool:
    return step.idle and step.launch is Launch.REPLAY
