"""What a graph freezes and what it reads anew."""

from collections.abc import Callable

import pytest
from recorder import Launched
from small_cases import HEADS, LATENTS, step

from attnfuzz.harness.memory.poison import unwritten
from attnfuzz.reference.case import Case, Launch, Mode, Pages, TableTail

LaunchesOf = Callable[[Case], list[Launched]]
SCALARS = (int, float, str, bool)


def replays(backend: str, mode: Mode, *batches: tuple[tuple[int, int], ...], tail: TableTail = TableTail.ZEROS) -> Case:
    return Case(
        backend=backend,
        geometry=LATENTS if backend == "trtllm_mla" else HEADS,
        steps=(
            step(mode, stride=4, rows=3, launch=Launch.CAPTURE),
            *(step(mode, *batch, stride=4, rows=3, launch=Launch.REPLAY) for batch in batches),
        ),
        pages=Pages(tail=tail, table_slack=1),
        max_len_slack=7,
    )


def test_columns_beyond_the_longest_request_keep_the_pages_of_the_step_before(launches_of: LaunchesOf) -> None:
    case = replays("trtllm_mha", Mode.DECODE, ((1, 13), (1, 5)), ((1, 3),), ((1, 6), (1, 9)), tail=TableTail.MINUS_ONE)
    tables = [launched.arguments["block_tables"].tolist() for launched in launches_of(case)]
    assert tables[0] == [[1, 2, 3, 4, 0, 0], [5, 6, -1, -1, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert tables[1] == [[1, 2, 3, 4, 0, 0], [0, 6, -1, -1, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert tables[2] == [[1, 2, -1, 4, 0, 0], [5, 6, 7, -1, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_a_latent_table_is_written_whole_and_padded_to_whole_blocks(launches_of: LaunchesOf) -> None:
    case = replays("trtllm_mla", Mode.DECODE, ((1, 13),), ((1, 3),), tail=TableTail.MINUS_ONE)
    tables = [launched.arguments["block_tables"] for launched in launches_of(case)]
    assert all(table.shape == (3, 32) for table in tables)
    assert tables[0][:2].tolist() == [[1, 2, 3, 4] + [-1] * 28, [0] * 32]
    assert tables[1][:2].tolist() == [[1] + [-1] * 31, [0] * 32]


@pytest.mark.parametrize("mode", [mode for mode in Mode.of_kernels() if mode.speculative])
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_scalars_are_those_of_the_capture(launches_of: LaunchesOf, backend: str, mode: Mode) -> None:
    q_len = 1 if mode is Mode.DECODE else 4
    case = replays(backend, mode, ((q_len, 13), (q_len, 5)), ((q_len, 3),))
    first, second = (
        {name: value for name, value in launched.arguments.items() if isinstance(value, SCALARS)}
        for launched in launches_of(case)
    )
    assert first == second
    assert first.get("max_seq_len", first.get("max_kv_len")) == 13 + 7
    assert first.get("batch_size", 3) == 3
    assert first.get("max_q_len", q_len) == q_len


@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_static_outputs_hold_the_sentinel_again_before_each_replay(launches_of: LaunchesOf, backend: str) -> None:
    for launched in launches_of(replays(backend, Mode.DECODE, ((1, 13),), ((1, 3),))):
        assert bool(unwritten(launched.arguments["out"]).all())
        assert bool(unwritten(launched.arguments["lse"]).all())


def test_accept_lengths_are_packed_on_the_context_kernel(launches_of: LaunchesOf) -> None:
    (launched,) = launches_of(replays("trtllm_mha", Mode.DRAFT_EXTEND, ((2, 13), (1, 5))))
    assert launched.op.name == "trtllm_batch_context_with_kv_cache"
    assert launched.arguments["cum_seq_lens_q"].tolist() == [0, 2, 3, 7]
    assert launched.arguments["seq_lens"].tolist() == [13, 5, 1]


def test_eager_accept_lengths_are_padded_to_the_longest_on_latents(launches_of: LaunchesOf) -> None:
    extend = step(Mode.DRAFT_EXTEND, (3, 13), (1, 5), stride=4)
    launched = launches_of(Case(backend="trtllm_mla", geometry=LATENTS, steps=(extend,)))[0]
    assert launched.arguments["query"].shape == (2, 3, 4, 24)
    assert launched.arguments["seq_lens"].tolist() == [13, 7]


def test_draft_extends_run_on_the_context_kernel_with_the_planned_batch(launches_of: LaunchesOf) -> None:
    extend = step(Mode.DRAFT_EXTEND_V2, (4, 9), (4, 6), stride=4, rows=3)
    (launched,) = launches_of(Case(backend="trtllm_mha", geometry=HEADS, steps=(extend,)))
    assert launched.op.name == "trtllm_batch_context_with_kv_cache"
    assert launched.arguments["batch_size"] == 2
    assert launched.arguments["query"].shape[0] == 12


@pytest.mark.parametrize(("mode", "padded"), [(Mode.DECODE, [9, 6, 1]), (Mode.TARGET_VERIFY, [9, 6, 5])])
def test_decode_and_verify_are_planned_after_padding(launches_of: LaunchesOf, mode: Mode, padded: list[int]) -> None:
    q_len = 1 if mode is Mode.DECODE else 4
    planned = step(mode, (q_len, 9), (q_len, 6), stride=4, rows=3)
    (launched,) = launches_of(Case(backend="trtllm_mha", geometry=HEADS, steps=(planned,)))
    assert launched.op.name == "trtllm_batch_decode_with_kv_cache"
    assert launched.arguments["q_len_per_req"] == q_len
    assert launched.arguments["seq_lens"].tolist() == padded
