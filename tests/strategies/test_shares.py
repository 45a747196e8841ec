"""How often what matters is drawn, in 400 cases for each backend. The floors are well below what is drawn."""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum

import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.case import (
    Case,
    Guard,
    KvView,
    Launch,
    Mode,
    Outputs,
    PageOrder,
    QueryView,
    Step,
    TableTail,
    Unused,
    Workspace,
    steps_in_chunks,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.numbers import families
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.validity import products
from attnfuzz.strategies.cases import cases

pytestmark = [pytest.mark.draws, pytest.mark.slow]


def share(cases: Iterable[Case], holds: Callable[[Case], bool]) -> float:
    """The share of the cases for which `holds`."""
    answers = [holds(case) for case in cases]
    return sum(answers) / len(answers)


def steps(cases: list[Case], *modes: Mode) -> list[Step]:
    """The steps of these modes that run."""
    return [step for case in cases for step in case.steps if step.requests and step.mode in modes]


def has_empty_row(case: Case) -> bool:
    """Whether queries of a request attend to no key at all in some call."""
    return any(
        (request.q_len and request.kv_len == 0)
        or (
            case.geometry.latent is not None
            and step.mode is Mode.CHUNKED_PREFILL
            and request.kv_len - request.q_len
            <= (step.chunks(case.chunk_capacity) - 1) * (case.chunk_capacity // len(step.requests))
        )
        for step in case.steps
        for request in step.requests
    )


def test_empty_rows(drawn: list[Case]) -> None:
    assert share(drawn, has_empty_row) >= 0.2


def test_whole_steps_without_keys(drawn: list[Case]) -> None:
    def all_empty(case: Case) -> bool:
        return any(
            len(step.requests) > 1 and not any(request.kv_len for request in step.requests) for step in case.steps
        )

    assert share(drawn, all_empty) >= 0.04


def test_fewer_keys_than_queries(drawn: list[Case]) -> None:
    def short(case: Case) -> bool:
        return any(0 < request.kv_len < request.q_len for step in case.steps for request in step.requests)

    assert share(drawn, short) >= 0.1


def test_rare_sizes(mha: list[Case], mla: list[Case], eager: list[Case]) -> None:
    """Over all backends: each is costly, and drawn once in hundreds of cases."""
    drawn = [*mha, *mla, *eager]
    requests = [[request for step in case.steps for request in step.requests] for case in drawn]
    for rare in (
        [any(request.q_len > 128 for request in each) for each in requests],
        [any(request.kv_len > 6000 for request in each) for each in requests],
        [any(len(step.requests) > 100 for step in case.steps) for case in drawn],
    ):
        assert 0 < sum(rare) / len(rare) <= 0.03


def test_pools_whose_offsets_pass_2_to_the_31(mha: list[Case], mla: list[Case], eager: list[Case]) -> None:
    assert all(share(drawn, lambda case: case.pages.hole > 0) >= 0.02 for drawn in (mha, mla))
    assert not any(case.pages.hole for case in eager)


@pytest.mark.parametrize("mode", Mode.of_kernels())
def test_every_mode(drawn: list[Case], mode: Mode) -> None:
    assert share(drawn, lambda case: any(step.mode is mode for step in case.steps)) >= 0.12


def test_several_steps_and_single_ones(drawn: list[Case]) -> None:
    several = share(drawn, lambda case: sum(step.launch is not Launch.CAPTURE for step in case.steps) > 1)
    assert 0.3 <= several <= 0.7


@pytest.mark.parametrize("backend", ["mha", "mla"])
def test_padding_and_none(backend: str, request: pytest.FixtureRequest) -> None:
    drawn: list[Case] = request.getfixturevalue(backend)
    assert share(drawn, lambda case: any(step.padded for step in case.steps)) >= 0.25
    assert share(drawn, lambda case: not any(step.padded for step in case.steps)) >= 0.1
    speculative = steps(drawn, *(mode for mode in Mode.of_kernels() if mode.speculative))
    beyond = [step for step in speculative if step.padded_batch > len(step.requests)]
    assert len(beyond) >= 0.2 * len(speculative)
    eager = [step for step in beyond if step.launch is Launch.EAGER]
    assert len(eager) >= 0.05 * len(speculative)


@pytest.mark.parametrize("backend", ["mha", "mla"])
def test_replays(backend: str, request: pytest.FixtureRequest) -> None:
    drawn: list[Case] = request.getfixturevalue(backend)

    def replays(case: Case) -> list[Step]:
        return [step for step in case.steps if step.launch is Launch.REPLAY]

    def again(case: Case) -> bool:
        graphs = Counter((step.mode, step.padded_tokens) for step in replays(case))
        return max(graphs.values(), default=0) > 1

    def mixed(case: Case) -> bool:
        return bool(replays(case)) and any(step.launch is Launch.EAGER for step in case.steps)

    assert share(drawn, lambda case: bool(replays(case))) >= 0.25
    assert share(drawn, again) >= 0.1
    assert share(drawn, mixed) >= 0.05
    replayed = Counter(mode for case in drawn for mode in {step.mode for step in replays(case)})
    assert min(replayed[mode] for mode in Mode.of_kernels() if mode.speculative) >= 0.05 * len(drawn)


def test_accept_lengths_vary(drawn: list[Case]) -> None:
    batches = [step for step in steps(drawn, Mode.DRAFT_EXTEND) if len(step.requests) > 1]
    varying = [step for step in batches if len({request.q_len for request in step.requests}) > 1]
    assert len(varying) > 0.6 * len(batches)


def test_several_chunks_of_latent_prefixes(mla: list[Case]) -> None:
    chunked = [case for case in mla if steps([case], Mode.CHUNKED_PREFILL)]

    def several(case: Case) -> bool:
        return any(step.chunks(case.chunk_capacity) >= 2 for step in steps([case], Mode.CHUNKED_PREFILL))

    assert share(chunked, several) >= 0.3


def test_prefixes_of_latents_are_cut_into_few_chunks(mla: list[Case]) -> None:
    cut = [(step, case.chunk_capacity) for case in mla for step in steps_in_chunks(case.steps, case.geometry)]
    extends = [step.chunks(capacity) for step, capacity in cut if step.mode is Mode.EXTEND]
    assert max(step.chunks(capacity) for step, capacity in cut) <= 12
    assert sum(chunks > 1 for chunks in extends) > 0.1 * len(extends)


def test_batches_of_all_sizes(drawn: list[Case]) -> None:
    largest = [max(len(step.requests) for step in case.steps) for case in drawn]
    assert sum(batch >= 10 for batch in largest) >= 0.05 * len(drawn)
    assert sum(batch <= 5 for batch in largest) >= 0.7 * len(drawn)
    assert max(largest) > 40


def test_pages_are_handed_to_later_requests(drawn: list[Case]) -> None:
    def handed(case: Case) -> bool:
        lives: dict[int, list[int]] = {}
        for index, step in enumerate(case.steps):
            for request in step.requests:
                lives.setdefault(request.slot, []).append(index)
        return any(max(one) < min(other) for one in lives.values() for other in lives.values())

    assert share(drawn, handed) >= 0.06
    assert any(handed(case) for case in drawn if case.pages.order is PageOrder.REUSED)


def test_tokens_are_overwritten_by_those_of_later_steps(drawn: list[Case]) -> None:
    def overwritten(case: Case) -> bool:
        ends: dict[int, int] = {}
        for step in case.steps:
            for request in step.requests:
                if request.q_len and request.kv_len - request.q_len < ends.get(request.slot, 0):
                    return True
                ends[request.slot] = max(ends.get(request.slot, 0), request.kv_len)
        return False

    assert share(drawn, overwritten) >= 0.15


def test_latents_of_every_size(mla: list[Case]) -> None:
    ranks = [case.geometry.latent.rank for case in mla if case.geometry.latent is not None]
    for some in (range(1, 129), range(129, 512), (512,)):
        assert sum(rank in some for rank in ranks) >= 0.05 * len(mla)


def test_writers_get_steps_of_many_new_tokens(draw: Callable[..., list[Case]]) -> None:
    writes = draw(cases(resolve("native:reshape_and_cache").capability, "writer"), 300)
    assert share(writes, lambda case: any(step.tokens > 1024 for step in case.steps)) >= 0.01


def test_slots_change_their_place(drawn: list[Case]) -> None:
    def moves(case: Case) -> bool:
        return any(
            [request.slot for request in step.requests] != sorted(request.slot for request in step.requests)
            for step in case.steps
        )

    assert share(drawn, moves) >= 0.25


def test_lengths_at_the_edges_of_pages(drawn: list[Case]) -> None:
    def at_an_edge(case: Case) -> set[int]:
        """How far lengths are from a multiple of the page size: those of -1, 0 and 1 that occur."""
        page = case.geometry.page_size
        lengths = {request.kv_len for step in case.steps for request in step.requests if request.kv_len > 2}
        return {by for by in (-1, 0, 1) if page > 2 and any((length - by) % page == 0 for length in lengths)}

    counted = Counter(by for case in drawn for by in at_an_edge(case))
    assert min(counted[by] for by in (-1, 0, 1)) >= 0.1 * len(drawn)


def test_long_kv(drawn: list[Case]) -> None:
    assert share(drawn, lambda case: max(case.slot_lengths().values()) > 400) >= 0.01


def test_most_cases_are_small(drawn: list[Case]) -> None:
    work = sorted(products(case) for case in drawn)
    assert work[len(work) // 2] < 2e6
    assert sum(work) / len(work) < 12e6
    assert work[-1] < 1e9


@pytest.mark.parametrize(
    ("members", "of"),
    [
        (families(resolve("trtllm_mha").capability), lambda case: case.values),
        (PageOrder, lambda case: case.pages.order),
        (TableTail, lambda case: case.pages.tail),
        (Unused, lambda case: case.pages.behind),
        (Unused, lambda case: case.pages.free),
        (Workspace, lambda case: case.workspace),
        (Outputs, lambda case: case.outputs),
        (Guard, lambda case: case.guard),
    ],
)
def test_every_member_of_every_choice(
    drawn: list[Case], members: Iterable[StrEnum], of: Callable[[Case], StrEnum]
) -> None:
    counted = Counter(of(case) for case in drawn)
    assert min(counted[member] for member in members) >= 0.05 * len(drawn)


def test_every_view_layout_and_dtype(mha: list[Case]) -> None:
    counted: Counter[StrEnum] = Counter()
    for case in mha:
        counted.update((case.views.query, case.views.kv, case.geometry.kv_layout, case.geometry.kv_dtype))
    dtypes = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3)
    assert min(counted[member] for member in (*QueryView, *KvView, *KvLayout, *dtypes)) >= 0.1 * len(mha)


@pytest.mark.parametrize(
    "particular",
    [
        lambda case: case.geometry.window_left >= 0,
        lambda case: case.geometry.sinks,
        lambda case: case.geometry.sinks and case.geometry.window_left >= 0,
        lambda case: case.scales.k != 1 and case.scales.v != 1,
        lambda case: case.scales.softmax != 1,
        lambda case: case.max_len_slack > 0,
        lambda case: case.views.table_gap > 0,
        lambda case: case.pages.table_slack > 0,
        lambda case: case.pages.spare == 0,
        lambda case: case.geometry.head_dim_qk % 64 != 0,
    ],
)
def test_every_particular(mha: list[Case], particular: Callable[[Case], bool]) -> None:
    assert 0.05 <= share(mha, particular) <= 0.9


def test_head_dims_that_differ_and_soft_caps(eager: list[Case]) -> None:
    assert share(eager, lambda case: case.geometry.head_dim_qk != case.geometry.head_dim_vo) >= 0.1
    assert share(eager, lambda case: case.geometry.soft_cap > 0) >= 0.1
