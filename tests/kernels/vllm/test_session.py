"""Cases on a tree with vLLM's names: each step is planned by its builder, and its calls land on native kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
import torch
from engine_cases import STEPS
from recorder import Recorder

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.interface.backend import Unsupported, WrittenThenAttended
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.runner import ModelRunner
from attnfuzz.reference.case import Case, Mode, Pages, Request, Step, TableTail
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

GEOMETRY = Geometry(
    q_heads=4, kv_heads=2, head_dim_qk=16, head_dim_vo=16, page_size=16, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)
DECODE, CONTEXT, WRITE = (
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_context_with_kv_cache",
    "reshape_and_cache_flash",
)
MIXED = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 37), Request(1, 20, 20), Request(2, 1, 9)), padded_tokens=28)
(VERIFY,), (CAPTURE, REPLAY) = STEPS["verify"], STEPS["graph"]

BenchOf = Callable[..., Any]


def case(tree: Path, *steps: Step, **more: Any) -> Case:
    return Case(backend=f"vllm@{tree}:flashinfer", geometry=GEOMETRY, steps=steps, **more)


def run(found: Case, bench_of: BenchOf) -> Recorder:
    """Run all steps of a case; what it launched."""
    recorder = Recorder()
    session = ENGINE.resolve(found.backend).open(found, bench_of(found, recorder))
    for index in range(len(found.steps)):
        session.forward(index)
    return recorder


def launched(recorder: Recorder, name: str) -> list[dict[str, Any]]:
    return [each.arguments for each in recorder.launches if each.op.name == name]


def test_requests_that_decode_come_first_and_the_others_are_prefilled(tree: Path, bench_of: BenchOf) -> None:
    recorder = run(case(tree, MIXED), bench_of)
    (decode,), (context,) = launched(recorder, DECODE), launched(recorder, CONTEXT)
    assert decode["seq_lens"].tolist() == [9]
    assert context["seq_lens"].tolist() in ([37, 20], [20, 37])
    assert context["cum_seq_lens_q"].tolist() in ([0, 5, 25], [0, 20, 25])


def test_padded_tokens_of_a_prefill_are_neither_planned_nor_written(tree: Path, bench_of: BenchOf) -> None:
    recorder = run(case(tree, MIXED), bench_of)
    (context,), (_, write) = launched(recorder, CONTEXT), launched(recorder, WRITE)
    assert context["query"].shape[0] == 25
    assert write["slot_mapping"].tolist()[26:] == [-1, -1]


def test_a_replay_pads_with_requests_without_keys_on_the_null_block(tree: Path, bench_of: BenchOf) -> None:
    tails = Pages(tail=TableTail.STALE)
    recorder = run(case(tree, CAPTURE, REPLAY, pages=tails), bench_of)
    (_, decode), (_, write) = launched(recorder, DECODE), launched(recorder, WRITE)
    assert decode["seq_lens"].tolist() == [40, 17, 0, 0]
    assert decode["block_tables"][2:].unique().tolist() == [0]
    assert (write["slot_mapping"] < 0).tolist() == [False] * 8 + [True] * 8


def test_a_dummy_batch_of_an_idle_rank_comes_before_each_step_and_writes_nothing(tree: Path, bench_of: BenchOf) -> None:
    recorder = run(case(tree, VERIFY, pages=Pages(tail=TableTail.STALE)), bench_of)
    (dummy, write), (_,) = launched(recorder, WRITE), launched(recorder, DECODE)
    assert dummy["slot_mapping"].unique().tolist() == [-1]
    assert (write["slot_mapping"] >= 0).all()


def test_a_request_without_a_token_is_not_scheduled(tree: Path, bench_of: BenchOf) -> None:
    idle = Step(mode=Mode.EXTEND, requests=(Request(0, 0, 5), Request(1, 3, 3)), padded_tokens=3)
    (context,) = launched(run(case(tree, idle), bench_of), CONTEXT)
    assert (context["batch_size"], context["seq_lens"].tolist()) == (1, [3])


def test_a_server_captures_its_graphs_before_the_first_step(
    tree: Path, bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []

    def logged(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(runner: ModelRunner, index: int, *rest: Any) -> Any:
            order.append((name, index))
            return method(runner, index, *rest)

        return call

    for name in ("capture", "run"):
        monkeypatch.setattr(ModelRunner, name, logged(name, getattr(ModelRunner, name)))
    run(case(tree, VERIFY, CAPTURE, REPLAY), bench_of)
    assert order == [("capture", 1), ("run", 0), ("run", 2)]


def test_a_server_drafts_one_number_of_tokens(tree: Path, bench_of: BenchOf) -> None:
    other = Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 2, 40),), padded_tokens=2, tokens_per_request=2)
    with pytest.raises(Unsupported, match="the same number of tokens"):
        run(case(tree, VERIFY, other), bench_of)


def test_a_case_is_refused_where_the_release_refuses_it(tree: Path, bench_of: BenchOf) -> None:
    fake_vllm.edit(tree, '"""Plan a batch."""\n', '"""Plan a batch."""\n        raise ValueError("no batch")\n')
    with pytest.raises(Unsupported, match="the release says: no batch"):
        run(case(tree, VERIFY), bench_of)


def test_a_question_without_an_answer_ends_the_run_with_the_line_that_asked(tree: Path, bench_of: BenchOf) -> None:
    asked = "self.page_size = spec.block_size"
    fake_vllm.edit(tree, asked, f"{asked}\n        vllm_config.cache_config.new_thing")
    with pytest.raises(Exception, match=r"vLLM 0\.32\.0 asks for cache_config\.new_thing \(vllm/v1/attention/.*:\d+\)"):
        run(case(tree, VERIFY), bench_of)


def test_a_tree_that_is_right_gives_the_attention_that_is_due(tree: Path, bench_of: BenchOf) -> None:
    found = case(tree, VERIFY)
    result = ENGINE.resolve(found.backend).open(found, bench_of(found)).forward(0)
    assert isinstance(result, WrittenThenAttended)
    output = result.output
    assert all(each.as_due for each in result.written.tensors)
    for each in output.attended:
        got = output.out[each.first_row : each.first_row + 4].transpose(0, 1).float()
        keys, values = (part.repeat_interleave(2, 1).transpose(0, 1).float() for part in (each.key, each.value))
        length = keys.shape[1]
        seen = torch.ones(4, length, dtype=torch.bool).tril(length - 4)
        due = torch.nn.functional.scaled_dot_product_attention(
            each.query.transpose(0, 1).float(), keys, values, attn_mask=seen
        )
        torch.testing.assert_close(got, due, atol=0.02, rtol=0)


@pytest.mark.slow
def test_a_length_that_is_off_by_one_in_verifies_is_found_in_a_worker(tree: Path) -> None:
    # Slow: verdicts come from a worker, which imports the tree.
    found = case(tree, CAPTURE, REPLAY)
    lengths = "seq_lens=common.seq_lens[: plan.decodes],"
    fake_vllm.edit(tree, lengths, lengths.replace("],", "] - 1,"))
    with Runner([found.backend]) as runner:
        kinds = {each.kind for each in runner.verdict(found).failures}
    assert Kind.OUTPUT_MISMATCH in kinds
