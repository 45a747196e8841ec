"""Runs of wrapper objects become calls on objects, which run as they did."""

from typing import Any, NoReturn

import pytest
import torch
from msgspec.structs import replace
from recorded_calls import recorded_call
from small_cases import run
from wrapper_lives import (
    DECODE,
    DECODE_PLAN,
    DIM,
    MLA,
    PAGE,
    PREFILL,
    PREFILL_PLAN,
    life,
    life_of_latents,
    method,
    tensors,
)

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.registry import load
from attnfuzz.harness.dumps.case_of_call import backend_of
from attnfuzz.harness.dumps.object_case import backends_with, make_object_case
from attnfuzz.harness.dumps.recorded import DumpError, RecordedCall
from attnfuzz.harness.triage import Blame, triage
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")
import direct_on_cpu
import fake_planned
import wrapper_backends

# FlashInfer, and the question which GPU is there, start processes.
pytestmark = pytest.mark.slow

POD = "PODWithPagedKVCacheWrapper"
FAKES = {
    wrapper: f"{wrapper_backends.__file__}:{name}"
    for wrapper, name in ((DECODE, "BATCH_DECODE"), (PREFILL, "FA2_PAGED"))
} | {MLA: f"{direct_on_cpu.__file__}:MLA_FA2", POD: f"{direct_on_cpu.__file__}:POD"}

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2}
CAUSAL = {"qo_indptr": PREFILL_PLAN["qo_indptr"], **PREFILL_PLAN, **HEADS}
"""A plan's arguments in FlashInfer's order."""


def imported(calls: list[RecordedCall], *runs: RecordedCall) -> CallCase:
    """The case of the last run, or of these, as it is read from a file."""
    backend = load(FAKES[calls[-1].function.partition(".")[0]])
    case, breaches = make_object_case(calls, runs or calls[-1:], backend)
    assert not breaches
    read = case_file.decode(case_file.encode(replace(case, backend=FAKES[calls[-1].function.partition(".")[0]])))
    assert isinstance(read, CallCase)
    return read


@pytest.mark.parametrize(
    ("wrapper", "plan", "rows"),
    [
        (DECODE, DECODE_PLAN, 3),
        (PREFILL, CAUSAL, 6),
        (PREFILL, CAUSAL | {"causal": False}, 6),
        (PREFILL, {name: value for name, value in CAUSAL.items() if name != "causal"}, 6),
        (PREFILL, CAUSAL | {"logits_soft_cap": 2.0, "q_data_type": torch.float32}, 6),
    ],
)
def test_a_run_is_made_with_its_plan_and_judged_by_it(wrapper: str, plan: dict[str, Any], rows: int) -> None:
    case = imported(life(wrapper, plan, rows=rows))
    assert [call.op.rpartition(".")[2] for call in case.calls] == [wrapper, "plan", "run"]
    assert [(call.makes, call.on) for call in case.calls] == [("wrapper_1", ""), ("", "wrapper_1"), ("", "wrapper_1")]
    verdict = run(case)
    assert (verdict.failures, verdict.rows) == ((), 4 * rows)
    assert any("are kept, renumbered" in note for note in case.notes)
    pool = next(buffer for buffer in case.buffers if "k_cache" in buffer.name)
    assert pool.size == 3 * 4 * 2 * 16


@pytest.mark.parametrize("pairs", [True, False])
def test_latents_and_queries_in_two_parts_are_judged_as_one(*, pairs: bool) -> None:
    case = imported(life_of_latents(pairs=pairs))
    verdict = run(case)
    assert (verdict.failures, verdict.rows) == ((), 8)
    assert {buffer.name: buffer.size for buffer in case.buffers if "kpe_cache" in buffer.name} == {
        "call_1_kpe_cache": 3 * PAGE * 64
    }


def test_more_keys_than_pages_hold_are_a_breach_of_the_plan() -> None:
    calls = life_of_latents(kv_len_arr=torch.tensor([9, 4], dtype=torch.int32))
    _, breaches = make_object_case(calls, calls[-1:], load(FAKES[MLA]))
    assert [breach.text for breach in breaches] == ["request 0 was planned with 9 keys, and its 2 pages hold 8"]


class InThisProcess:
    """Stands for the runner of triage."""

    def renew(self) -> None:
        pass

    def verdict(self, case: AnyCase) -> Verdict:
        assert isinstance(case, CallCase)
        return run(case)

    def trace(self, case: AnyCase) -> NoReturn:
        raise AssertionError(case)


@pytest.mark.parametrize(("factor", "fault"), [(1.0, Blame.NONE), (2.0, Blame.KERNEL)])
def test_triage_judges_a_recorded_prefill_and_decodes_one_by_one(
    factor: float, fault: Blame, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = {"q_p": torch.randn(3, 4, DIM), "k_p": torch.randn(5, 2, DIM), "v_p": torch.randn(5, 2, DIM)}
    both = tensors(3)
    arguments = queries | {"q_d": both["q"], "paged_kv_cache_d": both["paged_kv_cache"], "causal_p": True}
    begin, plan, _ = life(POD, DECODE_PLAN | {"sm_scale": 0.25}, begin={"kv_layout": "NHD"})
    calls = [begin, plan, method(f"{POD}.run", arguments | {"kv_layout_p": "NHD"})]
    case = imported(calls)
    assert case.answer is None
    assert "Only accesses are judged: attnfuzz triage judges the 2 parts of its result one by one." in case.notes
    right = fake_planned.PODWithPagedKVCacheWrapper.plan
    monkeypatch.setattr(
        fake_planned.PODWithPagedKVCacheWrapper,
        "plan",
        lambda self, **given: right(self, **{**given, "sm_scale": factor * given["sm_scale"]}),
    )
    # No other backend has the class.
    monkeypatch.setattr(registry, "builtin", lambda: ())
    assert triage(case, InThisProcess(), repeats=1).fault is fault


def test_a_second_plan_of_one_object_comes_with_the_first() -> None:
    begin, plan, first = life(DECODE, DECODE_PLAN)
    _, again, last = life(DECODE, DECODE_PLAN | {"indices": torch.tensor([0, 2, 4], dtype=torch.int32)})
    case = imported([begin, plan, first, again, last], first, last)
    assert [call.op.rpartition(".")[2] for call in case.calls] == [DECODE, "plan", "run", "plan", "run"]
    assert run(case).failures == ()


def test_a_page_id_outside_of_the_pool_is_a_breach() -> None:
    calls = life(DECODE, DECODE_PLAN | {"indices": torch.tensor([5, 77, 3], dtype=torch.int32)})
    case, breaches = make_object_case(calls, calls[-1:], load(FAKES[DECODE]))
    assert case.answer is None
    assert [breach.text for breach in breaches] == ["request 0 was planned with page id 77, and the pool has 6 pages"]


def test_source_code_is_refused() -> None:
    calls = life(DECODE, DECODE_PLAN, begin={"jit_args": "code"})
    with pytest.raises(DumpError, match="compiles source code by jit_args"):
        make_object_case(calls, calls[-1:], load(FAKES[DECODE]))


def test_another_backend_s_object_is_refused() -> None:
    calls = life(PREFILL, PREFILL_PLAN, rows=6)
    with pytest.raises(DumpError, match=f"has no {PREFILL}; name another backend"):
        make_object_case(calls, calls[-1:], load(FAKES[DECODE]))


def test_the_error_of_a_run_that_no_function_stands_for_names_backends() -> None:
    run = method("BatchMLAPagedAttentionWrapper.run", {})
    assert "mla_fa2" in backends_with(run)
    with pytest.raises(DumpError, match=r"name .*mla_fa2.* with --backend"):
        backend_of(run, None)
    with pytest.raises(DumpError, match="no backend has it"):
        backend_of(recorded_call("Other.run", {}, self_id=3), None)
