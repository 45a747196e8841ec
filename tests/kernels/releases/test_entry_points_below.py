"""Entry points of FlashInfer as a release calls them: bound, placed, checked, launched and recorded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from recorder import Recorder

from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.interface.backend import Bench, Op, Unsupported
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.releases.origins import Origins
from attnfuzz.kernels.releases.recording import record
from attnfuzz.kernels.releases.stand_ins import FlashInfer
from attnfuzz.kernels.sglang.stand_ins import FixupModule
from attnfuzz.reference.case import Guard, Outputs

_NATIVE = NATIVE.ops()
HEADS, DIM, PAGE = 2, 8, 4
flashinfer = FlashInfer()


@dataclass
class Stage:
    """A release that calls FlashInfer on a bench."""

    bench: Bench
    memory: GuardedMemory
    launcher: JournalingLauncher
    recorder: Recorder
    pool: torch.Tensor

    def decode(self, query: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, **more: Any) -> torch.Tensor:
        """What a backend's forward does: a workspace of its own, and metadata that was computed on the way."""
        cache = self.pool.permute(0, 2, 1, 3)
        out: torch.Tensor = flashinfer.decode.trtllm_batch_decode_with_kv_cache(
            query=query.to(torch.bfloat16) if query.dtype is torch.float32 else query,
            kv_cache=(cache, cache),
            workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
            block_tables=table // PAGE,
            seq_lens=(lengths + 0).to(torch.int32),
            max_seq_len=16,
            bmm1_scale=0.5,
            bmm2_scale=1.0,
            window_left=-1,
            sinks=None,
            out_dtype=torch.bfloat16,
            **more,
        )
        return out


@pytest.fixture
def stage(arena: Arena) -> Iterator[Stage]:
    memory, recorder = GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED), Recorder()
    launcher = JournalingLauncher(memory, lambda _: None, recorder)
    launcher.begin_step(0, "decode")
    pool = memory.copy("pool", torch.randn(5, PAGE, HEADS, DIM).to(torch.bfloat16))
    yield Stage(Bench(memory, launcher, torch.device("cpu")), memory, launcher, recorder, pool)
    memory.release()


@pytest.fixture
def on(stage: Stage) -> Callable[..., Any]:
    return lambda ops=_NATIVE: below(Version("0.6.3"), stage.bench, KernelsBelow(ops))


def line_of(text: str) -> int:
    """The number of the line of this file that has a text; the first one, since tests follow the stage."""
    return next(at for at, line in enumerate(Path(__file__).read_text().splitlines(), start=1) if text in line)


def test_a_failure_s_text_has_the_lines_of_the_call_and_of_its_metadata(stage: Stage) -> None:
    here = Path(__file__).parent
    with below(Version("0.6.3"), stage.bench, KernelsBelow(_NATIVE), Origins(here.parent, here.name)):
        stage.decode(*batch())
    call, table, lengths = map(line_of, ("= flashinfer.decode.trtllm", "block_tables=table", "seq_lens=(lengths + 0)"))
    assert stage.launcher.ways()("trtllm_batch_decode_with_kv_cache") == (
        f"called at {Path(__file__).name}:{call} with block_tables of line {table} and seq_lens of line {lengths}"
    )


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of three requests, the first slots of their pages, and their lengths."""
    return torch.randn(3, HEADS, DIM), torch.tensor([[4, 8], [8, 12], [16, 0]]).int(), torch.tensor([5, 8, 2])


def test_a_kernel_gets_the_arguments_of_the_release_from_guarded_memory(stage: Stage, on: Callable[..., Any]) -> None:
    query, table, lengths = batch()
    with on():
        out = stage.decode(query, table, lengths)
    (launched,) = stage.recorder.launches
    assert launched.arguments["block_tables"].tolist() == [[1, 2], [2, 3], [4, 0]]
    assert launched.arguments["seq_lens"].tolist() == [5, 8, 2]
    assert "q_len_per_req" not in launched.arguments
    assert (out.shape, out.dtype) == ((3, HEADS, DIM), torch.bfloat16)
    assert not out.isnan().any()
    assert stage.memory.holds(out)
    assert stage.launcher.broken == []


def test_a_replay_equals_eager_calls(stage: Stage, on: Callable[..., Any]) -> None:
    query, table, lengths = batch()
    with on():
        with record(stage.bench) as graph:
            captured = stage.decode(query, table, lengths) * 2
        assert stage.recorder.launches == []
        for _ in range(2):
            query.normal_()
            lengths[0] -= 1
            graph.replay()
            assert torch.equal(captured, stage.decode(query, table, lengths) * 2)


def test_an_argument_that_the_pinned_flashinfer_lacks_is_refused(stage: Stage, on: Callable[..., Any]) -> None:
    with on(), pytest.raises(TypeError, match="return_lse"):
        stage.decode(*batch(), return_lse=True)


def test_a_function_without_a_kernel_is_unsupported(stage: Stage, on: Callable[..., Any]) -> None:
    with on([]), pytest.raises(Unsupported, match="trtllm_batch_decode_with_kv_cache"):
        stage.decode(*batch())


def test_float8_queries_are_widened_for_kernels_of_the_cpu(stage: Stage, on: Callable[..., Any]) -> None:
    query, table, lengths = batch()
    narrow = query.to(torch.float8_e4m3fn)
    with on():
        assert torch.equal(
            stage.decode(narrow, table, lengths), stage.decode(narrow.to(torch.bfloat16), table, lengths)
        )


def test_a_breach_is_observed_and_the_kernel_still_runs(stage: Stage, on: Callable[..., Any]) -> None:
    query, table, lengths = batch()
    with on():
        stage.decode(query, table[[0, 1, 2, 2]], lengths[[0, 1, 2, 2]])
    (broken,) = stage.launcher.broken
    assert (broken.kind, broken.place) == (Kind.CONTRACT_BROKEN, "query, q_len_per_req, block_tables, seq_lens")
    assert (broken.mode, broken.kernel, broken.call) == ("decode", "trtllm_batch_decode_with_kv_cache", 0)
    assert "a batch of 3, but block_tables and seq_lens describe 4 requests" in broken.message
    assert len(stage.recorder.launches) == 1


def test_scratch_that_no_kernel_here_takes_has_preconditions_too(stage: Stage) -> None:
    few = torch.zeros(16, dtype=torch.uint8)
    with below(Version("0.7.2.post1"), stage.bench, KernelsBelow(_NATIVE)):
        stage.decode(*batch(), multi_ctas_kv_counter_buffer=few)
    (broken,) = stage.launcher.broken
    assert (broken.kind, broken.place) == (Kind.CONTRACT_BROKEN, "multi_ctas_kv_counter_buffer")
    assert "multi_ctas_kv_counter_buffer" not in stage.recorder.launches[0].arguments


def test_a_breach_in_a_replay_is_that_of_the_values_it_finds(stage: Stage, on: Callable[..., Any]) -> None:
    query, table, lengths = batch()
    with on():
        with record(stage.bench) as graph:
            stage.decode(query, table, lengths)
        graph.replay()
        assert stage.launcher.broken == []
        lengths[2] = -1
        graph.replay()
    assert "seq_lens[2] is -1" in stage.launcher.broken[0].message


def test_results_of_a_kernel_reach_the_tensors_of_the_release(on: Callable[..., Any]) -> None:
    out, lse = torch.ones(3, HEADS, DIM).to(torch.bfloat16), torch.ones(3, HEADS)
    with on():
        FixupModule().fixup_zero_kv_rows(out, lse, torch.tensor([4, 0, 2]).int(), torch.tensor([0, 1, 2, 3]).int(), 1)
    assert out[:, 0, 0].tolist() == [1, 0, 1]
    assert lse[:, 0].tolist() == [1, float("-inf"), 1]


def test_packed_keys_give_an_lse_where_one_is_asked_for(on: Callable[..., Any]) -> None:
    ends, lengths = torch.tensor([0, 2, 5]).int(), torch.tensor([2, 3])
    packed = torch.randn(5, HEADS, DIM).to(torch.bfloat16)
    with on():
        out, lse = flashinfer.prefill.trtllm_ragged_attention_deepseek(
            packed, packed, packed, torch.zeros(8).to(torch.uint8), lengths, 3, 3, 1.0, 1.0, -1.0, 2, -1, ends, ends,
            False, True, True,
        )  # fmt: skip
    assert (out.shape, lse.shape, lse.dtype) == ((5, HEADS, DIM), (5, HEADS), torch.float32)
    assert torch.equal(out[0], packed[0])


def test_stand_ins_need_a_session() -> None:
    with pytest.raises(RuntimeError, match="while no session runs"):
        flashinfer.decode.trtllm_batch_decode_with_kv_cache()


def test_code_of_the_release_itself_is_on_record_and_in_no_trace(stage: Stage, on: Callable[..., Any]) -> None:
    numbers = torch.tensor([1.0, 2.0])

    def double(*, values: torch.Tensor) -> None:
        values *= 2

    with on() as lower:
        lower.launch(Op("double", double, frozenset({"values"}), own=True), {"values": numbers})
    assert numbers.tolist() == [2, 4]
    assert stage.launcher.kernel == "double"
    assert stage.recorder.launches == []
