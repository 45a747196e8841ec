"""The native kernels of sparse attention: right in drawn cases, and trusting as the libraries' kernels are."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from attnfuzz.harness.families.sparse import SPARSE as FAMILY
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.defects.kernels import SPARSE_DEFECTS
from attnfuzz.kernels.native import build, sparse_ops
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.kernels.sparse.native import SPARSE
from attnfuzz.reference.case_file import decode as decoded
from attnfuzz.reference.case_file import encode as encoded
from attnfuzz.reference.sparse.case import (
    CHAIN,
    KvFormat,
    ListOrder,
    Scores,
    SparseCase,
    SparseGeometry,
    SparseMode,
    SparseOp,
    SparseRequest,
    SparseStep,
    Tail,
)
from attnfuzz.reference.validity import ImpossibleCase
from attnfuzz.strategies.lean import NO_LEAN

pytestmark = pytest.mark.slow
"""Many cases are drawn, and run."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


def drawn(count: int) -> list[SparseCase]:
    found: list[SparseCase] = []
    run_examples(FAMILY.cases(SPARSE.capability, SPARSE.name, NO_LEAN), found.append, examples=count, seed_of=5)
    return found


def verdict(case: SparseCase, backend: SparseBackend = SPARSE) -> Verdict:
    run = Execution(Task(case=case, backend=backend.name), lambda _: None, backend=backend)  # type: ignore[arg-type]
    return run.run()


def decode(*lengths: int, q_len: int = 1, **others: object) -> SparseStep:
    mode = SparseMode.DECODE if q_len == 1 else SparseMode.VERIFY
    return SparseStep(mode=mode, requests=tuple(SparseRequest(q_len, each) for each in lengths), **others)  # type: ignore[arg-type]


def one(op: SparseOp, *steps: SparseStep, **fields: object) -> SparseCase:
    geometry = SparseGeometry(**{k: fields.pop(k) for k in list(fields) if k in SparseGeometry.__struct_fields__})  # type: ignore[arg-type]
    return SparseCase(backend=SPARSE.name, ops=(op,), steps=steps, geometry=geometry, **fields)  # type: ignore[arg-type]


def test_drawn_cases_pass_and_reach_every_feature() -> None:
    found = drawn(80)
    for case in found:
        case.validate()
        assert SPARSE.capability.why_not(case) is None
        assert decoded(encoded(case)) == case
        assert verdict(case).failures == (), FAMILY.describe(case)
    shown = frozenset().union(*(FAMILY.table.coverage_of(case) for case in found))
    axes = FAMILY.table.axes
    missing = {feature for name in axes if name not in ("values", "scores") for feature in axes[name]} - shown
    assert missing == {f"format={KvFormat.PAGED}"}


def planted(name: str) -> SparseBackend:
    defect = next(each for each in SPARSE_DEFECTS if each.name == name)
    return defect.planted(f"native:sparse+{name}")


@pytest.mark.parametrize(
    ("name", "case", "kind", "place"),
    [
        ("index_relu_left_out", one(SparseOp.LOGITS, decode(20)), Kind.WRITE_MISMATCH, "logits"),
        ("top_k_ties_left_out", one(SparseOp.TOP_K, decode(40), scores=Scores.TIES), Kind.OUTPUT_MISMATCH, "indices"),
        ("lists_minus_one_to_0", one(SparseOp.TRANSFORM, decode(3)), Kind.WRITE_MISMATCH, "slots"),
        (
            "lists_counts_ignored",
            one(SparseOp.ATTENTION, decode(9), counts=True, tail=Tail.OTHER_SLOTS),
            Kind.NOT_FINITE,
            "out",
        ),
        (
            "index_scale_inverted",
            one(SparseOp.WRITE, decode(5)),
            Kind.WRITE_MISMATCH,
            "scales of the indexer's cache",
        ),
    ],
)
def test_a_defect_is_reported_for_its_own_op_in_a_chain_too(
    name: str, case: SparseCase, kind: Kind, place: str
) -> None:
    build.load_with_defects()
    backend = planted(name)
    ((op,), kinds) = case.ops, (kind, place)
    assert verdict(case).failures == ()
    (failure, *_) = verdict(case, backend).failures
    assert (failure.kind, failure.place) == kinds
    if op is SparseOp.ATTENTION or op is SparseOp.TOP_K:
        return
    chain = case.having(ops=CHAIN)
    (failure, *_) = verdict(chain, backend).failures
    assert (failure.kind, failure.place) == kinds


def test_a_wrong_top_k_is_not_blamed_on_the_attention_after_it() -> None:
    build.load_with_defects()
    case = one(SparseOp.TOP_K, decode(40), scores=Scores.TIES).having(ops=CHAIN[1:])
    found = verdict(case, planted("top_k_ties_left_out")).failures
    assert [each.place for each in found] == ["indices"]
    assert found[0].kernel == "top_k_per_row"


def test_a_replayed_step_gets_the_inputs_of_its_own() -> None:
    steps = (decode(9, 30, replayed=True), decode(40, 2, replayed=True), decode(5, padding=1, replayed=True))
    assert verdict(one(SparseOp.LOGITS, *steps).having(ops=CHAIN)).failures == ()


def test_idle_steps_of_padding_alone_pass() -> None:
    step = SparseStep(mode=SparseMode.IDLE, padding=2)
    assert verdict(one(SparseOp.LOGITS, step).having(ops=CHAIN)).failures == ()


@pytest.mark.parametrize("kind", SPARSE.capability.formats)
@pytest.mark.parametrize("order", ListOrder)
def test_lists_of_each_order_and_format_pass(kind: KvFormat, order: ListOrder) -> None:
    dims = {KvFormat.HEADS: (32, 16), KvFormat.LATENT: (48, 32), KvFormat.PACKED: (576, 512)}[kind]
    fields = {"format": kind, "dim": dims[0], "value_dim": dims[1], "second": 5, "sinks": True, "counts": True}
    case = one(SparseOp.ATTENTION, decode(30, 3), order=order, tail=Tail.PAST_THE_POOL, **fields)
    assert verdict(case).failures == ()


def impossible() -> Iterator[tuple[SparseCase, str]]:
    case = one(SparseOp.TOP_K, decode(5))
    yield case.having(ops=(SparseOp.TOP_K, SparseOp.LOGITS)), "ops is"
    yield case.having(steps=()), "steps is 0"
    yield case.having(steps=(SparseStep(mode=SparseMode.IDLE, requests=(SparseRequest(1, 1),)),)), "requests"
    yield case.having(steps=(decode(5, q_len=6),)), "must have 1 <= q_len <= kv_len"
    yield case.having(ops=CHAIN, scores=Scores.NAN), "scores is"
    yield case.having(tail=Tail.OTHER_SLOTS), "needs counts"
    yield case.having(geometry=SparseGeometry(format=KvFormat.PACKED)), "must be dim and value_dim"


@pytest.mark.parametrize(("case", "words"), list(impossible()))
def test_an_impossible_case_is_refused_by_the_name_of_its_field(case: SparseCase, words: str) -> None:
    with pytest.raises(ImpossibleCase, match=words):
        case.validate()


def test_lengths_and_tables_are_trusted() -> None:
    """A length past the scores is followed: the kernel reads the next row's."""
    scores = torch.tensor([[1.0, 2.0], [9.0, 8.0]])
    lists = torch.zeros(1, 1, dtype=torch.int32)
    sparse_ops.top_k_per_row(scores[:1], torch.tensor([4], dtype=torch.int32), lists)
    assert lists.tolist() == [[2]]
    slots = torch.zeros(1, 2, dtype=torch.int32)
    table = torch.tensor([[7, -3]], dtype=torch.int32)
    requests = torch.zeros(1, dtype=torch.int32)
    positions = torch.tensor([[16, -1]], dtype=torch.int32)
    sparse_ops.convert_positions_to_slots(positions, requests, table, slots, page_size=16)
    assert slots.tolist() == [[-48, -1]]


def test_smaller_cases_are_possible_or_refused_and_still_of_the_backend() -> None:
    case = drawn(3)[-1]
    smaller = [each for edit in FAMILY.edits(None) for each in edit(case)]
    assert smaller
    assert all(each != case for each in smaller)


def test_lists_that_are_returned_in_place_of_written_are_named() -> None:
    def top_k(*, indices: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(indices)

    case = one(SparseOp.TOP_K, decode(5))
    (failure, *_) = verdict(case, replace(SPARSE, functions={**SPARSE.functions, "top_k": top_k})).failures
    assert failure.kind is Kind.UNWRITTEN
    assert "top_k returned a tensor [1, 16], torch.int32, which is ignored: write the result into indices" in (
        failure.message
    )


@pytest.mark.parametrize("op", [SparseOp.LOGITS, SparseOp.TRANSFORM])
def test_rows_that_were_never_written_are_reported_as_unwritten(op: SparseOp) -> None:
    def nothing(**_: object) -> None:
        """Write nothing."""

    lazy = replace(SPARSE, functions={**SPARSE.functions, "paged_logits": nothing, "slots": nothing})
    (failure, *_) = verdict(one(op, decode(5)), lazy).failures
    assert failure.kind is Kind.UNWRITTEN


def test_each_op_of_a_capability_needs_its_functions() -> None:
    with pytest.raises(ValueError, match='has no function "top_k", "compress": add it'):
        replace(SPARSE, functions={k: f for k, f in SPARSE.functions.items() if k not in ("compress", "top_k")})
