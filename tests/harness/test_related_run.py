"""A case with a relation is run twice: what differs is found, and what fails in the second run is said to."""

from dataclasses import replace as with_field
from pathlib import Path

import pytest
import torch
from fickle_backend import FickleBackend
from msgspec.structs import replace
from repetition import examples
from small_cases import HEADS, LATENTS, drawn, lighter, run, step

from attnfuzz.harness.export import CannotExport, export_script
from attnfuzz.harness.inside import execute
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.trtllm.backends import MHA
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import Case, Launch, Mode, Step
from attnfuzz.reference.relation import Relation

EXTEND = step(Mode.EXTEND, (2, 19), (1, 5))
CAPTURE = step(Mode.DECODE, rows=2, launch=Launch.CAPTURE)
REPLAY = step(Mode.DECODE, (1, 19), (1, 5), launch=Launch.REPLAY)


def case_of(*steps: Step, relation: Relation | None, backend: str = "trtllm_mha") -> Case:
    geometry = LATENTS if relation is Relation.CHUNKS_CHANGED else HEADS
    return Case(backend=backend, geometry=geometry, steps=steps, relation=relation)


def related_case(relation: Relation) -> Case:
    if relation is Relation.REPLAY_AS_EAGER:
        return case_of(CAPTURE, REPLAY, relation=relation)
    if relation is Relation.CHUNKS_CHANGED:
        return case_of(step(Mode.CHUNKED_PREFILL, (2, 19), (1, 5)), relation=relation)
    return case_of(EXTEND, relation=relation)


def judged(case: Case, monkeypatch: pytest.MonkeyPatch, backend: object, *without: Tier) -> Verdict:
    monkeypatch.setattr(execute, "backend_of", lambda _: backend)
    return Execution(Task(case=case, backend="fickle", without=without), lambda _: None).run()


@pytest.mark.slow
@pytest.mark.parametrize("relation", Relation)
def test_a_difference_between_related_runs_is_found_only_by_comparing(
    relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, fickle = related_case(relation), FickleBackend(relation=relation)
    found = judged(case, monkeypatch, fickle).failures
    assert {(each.tier, each.place, each.step) for each in found} == {("T6", "out", len(case.steps) - 1)}
    assert found[0].message.startswith("request 0 (")
    assert found[0].message.endswith(f", in the related run ({relation.words})")
    assert found[0].related
    assert judged(case, monkeypatch, fickle, Tier.T6).failures == ()
    if relation is not Relation.SAME_CALL:
        assert judged(replace(case, relation=None), monkeypatch, fickle).failures == ()


@pytest.mark.parametrize("relation", Relation)
def test_a_last_bit_counts_only_where_bits_are_promised(relation: Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(related_case(relation), monkeypatch, FickleBackend(relation=relation, off=2.0**-24)).failures
    assert bool(found) is (relation in (Relation.SAME_CALL, Relation.PAGES_RELABELLED))


class ReadsStaleQueries(MhaSession):
    """A replay forgets to copy the queries: what it attends to is what the kernel was given, and answered rightly."""

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        del queries
        captured, rows = self._captured[step.mode, step.padded_tokens], Row.padded(step)
        self._refresh(captured.plan, rows)
        captured.replay(self._bench, captured.query)
        return self._output(step, rows, captured.query, captured.results)


def test_stale_queries_of_a_replay_show_only_beside_an_eager_run(monkeypatch: pytest.MonkeyPatch) -> None:
    MHA.prepare(lambda _: None)
    stale = with_field(MHA, session=ReadsStaleQueries)
    case = case_of(CAPTURE, REPLAY, relation=Relation.REPLAY_AS_EAGER)
    assert {found.kind for found in judged(case, monkeypatch, stale).failures} == {Kind.REPLAY_DIVERGED}
    assert judged(case, monkeypatch, stale, Tier.T6).failures == ()
    for other in (None, Relation.SAME_CALL, Relation.BATCH_PERMUTED):
        assert judged(replace(case, relation=other), monkeypatch, stale).failures == ()
    assert judged(case, monkeypatch, MHA).failures == ()


DRAFTS = step(Mode.DRAFT_EXTEND_V2, (4, 9), stride=4)


@pytest.mark.slow
def test_a_death_in_the_related_run_is_reported_as_one(runner: Runner) -> None:
    case = case_of(DRAFTS, relation=Relation.PADDING_ENLARGED, backend="trtllm_mha@21649-before")
    (found,) = runner.verdict(case).failures
    assert (found.kind, found.place, found.step) == (Kind.ILLEGAL_ACCESS, "cum_seq_lens_q", 0)
    assert found.message.endswith("step 0 (draft_extend_v2), in the related run (padding enlarged)")
    assert found.related
    assert runner.verdict(replace(case, relation=None)).failures == ()
    assert "in the related run (padding enlarged)" in export_script(case, runner)


def test_a_difference_between_runs_is_not_exported_as_calls(runner: Runner) -> None:
    fickle = f"{Path(__file__).parents[1] / 'fakes' / 'fickle_backend.py'}:SPLITS"
    case = replace(related_case(Relation.SPLITS_CHANGED), backend=fickle)
    assert [found.tier for found in runner.verdict(case).failures] == ["T6"]
    with pytest.raises(CannotExport, match="two runs differ"):
        export_script(case, runner)


@pytest.mark.slow
@examples(90, 120)
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla", "torch_sdpa"])
def test_right_backends_keep_the_relations_that_are_drawn(backend: str, count: int) -> None:
    related = lighter([case for case in drawn(backend, count) if case.relation is not None])
    assert len({case.relation for case in related}) >= 4
    for case in related:
        assert run(case).failures == (), case
