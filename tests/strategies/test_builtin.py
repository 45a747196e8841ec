"""What is drawn for the attention and writers of this project, those on GPUs included: nothing here runs a kernel."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis.strategies import SearchStrategy

from attnfuzz.harness.backends.registry import builtin
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch
from attnfuzz.reference.device import Device
from attnfuzz.reference.validity import products, validate
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import impossible, pair_bits, pairs_in
from attnfuzz.strategies.supported import within

pytestmark = pytest.mark.slow

Draw = Callable[[SearchStrategy[Case], int], list[Case]]

# Revisions share the capability of what they are revisions of.
BACKENDS = {
    backend.capability: name
    for name, backend in reversed(builtin().items())
    if isinstance(backend.capability, Capability)
}


def kind(can: Capability) -> tuple[bool, ...]:
    """Which of the rules that decide what is drawn apply to a backend."""
    on_gpu, masked = can.device is Device.CUDA, len(can.masks) > 1
    has = (can.buckets, can.graph_modes, can.rotary, can.tombstones)
    return (on_gpu, masked, can.latent, can.writes, can.padding, can.schedules, *map(bool, has))


KINDS = {kind(can): can for can in BACKENDS}


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((can, 80), id=BACKENDS[can]) for can in KINDS.values()),
        *(pytest.param((can, 120), id=f"{name}-120", marks=pytest.mark.long) for can, name in BACKENDS.items()),
    ],
)
def chosen(request: pytest.FixtureRequest) -> tuple[Capability, int]:
    """What a backend can do, and how many cases to draw: one backend of each kind, and with `long` all."""
    result: tuple[Capability, int] = request.param
    return result


@pytest.fixture(scope="module")
def can(chosen: tuple[Capability, int]) -> Capability:
    """What a backend can do."""
    return chosen[0]


@pytest.fixture(scope="module")
def drawn(chosen: tuple[Capability, int], draw: Draw) -> list[Case]:
    """Cases for it."""
    can, count = chosen
    return draw(cases(can, BACKENDS[can]), count)


def test_every_backend_gets_cases_that_it_supports(draw: Draw) -> None:
    for can, name in BACKENDS.items():
        assert {can.why_not(case) for case in draw(cases(can, name), 3)} == {None}, name


def test_drawn_cases_are_supported_and_show_no_impossible_pair(can: Capability, drawn: list[Case]) -> None:
    reached = 0
    for case in drawn:
        validate(case)
        assert can.why_not(case) is None
        reached |= pair_bits(case)
    assert {both: impossible(can)[both] for both in impossible(can).keys() & pairs_in(reached)} == {}


def test_every_bucket_is_drawn(can: Capability, drawn: list[Case]) -> None:
    for bucket in can.buckets:
        assert any(bucket.covers(case.geometry) for case in drawn)


def test_empty_rows_padding_and_replays_are_drawn_wherever_there_are_any(can: Capability, drawn: list[Case]) -> None:
    counted = Counter(shown for case in drawn for shown in shows(case))
    if can.empty_kv and not prefills_with_latents(can):
        assert counted["empty"] >= 0.06 * len(drawn)
    if can.padding:
        assert counted["padded"] >= 0.2 * len(drawn)
    if any(within(can, bucket).capturable for bucket in can.buckets or (None,)):
        assert counted["replayed"] >= 0.1 * len(drawn)


def test_most_cases_are_small(can: Capability, drawn: list[Case]) -> None:
    work = sorted(map(elements_written if can.writes else products, drawn))
    usual, mean = (1e5, 5e5) if can.writes else (6e6, 40e6)
    assert work[len(work) // 2] < usual
    assert sum(work) / len(work) < mean


def elements_written(case: Case) -> int:
    geometry = case.geometry
    return sum(step.tokens for step in case.steps) * geometry.kv_heads * (geometry.head_dim_qk + geometry.head_dim_vo)


def shows(case: Case) -> set[str]:
    """Which of what matters most a case has."""
    requests = [request for step in case.steps for request in step.requests]
    found = {"empty"} if any(request.q_len and not request.kv_len for request in requests) else set()
    found |= {"padded"} if any(step.padded and step.requests for step in case.steps) else set()
    return found | ({"replayed"} if any(step.launch is Launch.REPLAY for step in case.steps) else set())


def prefills_with_latents(can: Capability) -> bool:
    """Whether all that it does is to attend to new tokens, which are keys too."""
    return can.latent and not any(mode.speculative for mode in can.modes)
