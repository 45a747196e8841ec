"""A step becomes the release's own batch, in the conventions of its workers."""

import pytest
import torch
from harness_cases import GEOMETRY, LATENT
from loaded_tree import LoadedTree, served, served_case
from msgspec.structs import replace

from attnfuzz.kernels.releases.answers import ASKED, Unanswered
from attnfuzz.kernels.sglang.batch import count_tokens_of_ranks, forward_batch, new_keys, pad
from attnfuzz.kernels.sglang.padding import Ranks
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.reference.case import Mode, Request, Scales, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

_FP8 = replace(GEOMETRY, kv_dtype=DType.FLOAT8_E4M3)


def _uniform(mode: Mode, stride: int, kv_lens: tuple[int, ...], rows: int | None = None) -> Step:
    requests = tuple(Request(slot, stride, length) for slot, length in enumerate(kv_lens))
    padded = len(kv_lens) * stride if rows is None else rows
    return Step(mode=mode, requests=requests, padded_tokens=padded, tokens_per_request=stride)


def _extend(*lengths: tuple[int, int], rows: int | None = None) -> Step:
    requests = tuple(Request(slot, *each) for slot, each in enumerate(lengths))
    tokens = sum(q_len for q_len, _ in lengths)
    return Step(mode=Mode.EXTEND, requests=requests, padded_tokens=tokens if rows is None else rows)


def _served(loaded: LoadedTree, *steps: Step, geometry: Geometry = GEOMETRY) -> Server:
    return served(loaded, served_case(geometry, *steps))


def test_seq_lens_of_a_verify_leave_the_drafts_out_and_those_of_a_draft_extend_do_not(loaded: LoadedTree) -> None:
    server = _served(loaded, _uniform(Mode.TARGET_VERIFY, 4, (9, 6)), _uniform(Mode.DRAFT_EXTEND_V2, 4, (9, 6)))
    assert [forward_batch(server, index).seq_lens.tolist() for index in (0, 1)] == [[5, 2], [9, 6]]


@pytest.mark.parametrize(
    ("step", "mode", "positions"),
    [
        (_uniform(Mode.DECODE, 1, (6, 9)), "DECODE", [5, 8]),
        (_uniform(Mode.TARGET_VERIFY, 2, (6, 9)), "TARGET_VERIFY", [4, 5, 7, 8]),
        (_extend((2, 6), (3, 3)), "EXTEND", [4, 5, 0, 1, 2]),
    ],
    ids=["decode", "verify", "extend"],
)
def test_every_new_token_has_a_position_and_a_slot_of_the_pool(
    loaded: LoadedTree, step: Step, mode: str, positions: list[int]
) -> None:
    server = _served(loaded, step)
    batch = forward_batch(server, 0)
    assert batch.forward_mode.name == mode
    assert batch.positions.tolist() == positions
    table = server.rows.table
    server.prepare_step(step)
    owners = [request for request in range(2) for _ in range(step.requests[request].q_len)]
    rows = [int(batch.req_pool_indices[owner]) for owner in owners]
    assert batch.out_cache_loc.tolist() == [int(table[row, at]) for row, at in zip(rows, positions, strict=True)]


def test_an_extend_tells_prefixes_and_new_tokens_on_the_device_and_on_the_cpu(loaded: LoadedTree) -> None:
    batch = forward_batch(_served(loaded, _extend((2, 6), (3, 3))), 0)
    assert (batch.extend_seq_lens.tolist(), batch.extend_prefix_lens.tolist()) == ([2, 3], [4, 0])
    assert (batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu) == ([2, 3], [4, 0])
    assert (batch.extend_num_tokens, batch.extend_start_loc.tolist()) == (5, [0, 2])


def test_a_request_without_new_tokens_is_not_scheduled(loaded: LoadedTree) -> None:
    batch = forward_batch(_served(loaded, _extend((0, 5), (2, 6))), 0)
    assert (batch.batch_size, batch.seq_lens.tolist(), batch.extend_seq_lens_cpu) == (1, [6], [2])


def test_a_batch_is_padded_by_the_release_among_ranks_that_ask_for_it(loaded: LoadedTree) -> None:
    step = _uniform(Mode.TARGET_VERIFY, 4, (9, 6), rows=16)
    server = _served(loaded, step)
    assert server.ranks == Ranks(attention=1, data_parallel=4)
    batch = forward_batch(server, 0)
    count_tokens_of_ranks(server, batch, step)
    pad(server, batch)
    assert (batch.batch_size, batch.input_ids.shape[0]) == (4, 16)
    assert batch.seq_lens.tolist() == [5, 2, 1, 1]
    assert batch.out_cache_loc[8:].tolist() == [0] * 8


def test_an_extend_is_padded_to_its_attention_group(loaded: LoadedTree) -> None:
    step = _extend((3, 6), (2, 2), rows=8)
    server = _served(loaded, step)
    assert server.ranks == Ranks(attention=4, data_parallel=1)
    batch = forward_batch(server, 0)
    count_tokens_of_ranks(server, batch, step)
    pad(server, batch)
    assert (batch.batch_size, batch.input_ids.shape[0]) == (2, 8)


def test_a_release_that_writes_the_new_keys_fills_the_pool_like_the_slots(loaded: LoadedTree) -> None:
    for geometry, scales in ((GEOMETRY, Scales()), (_FP8, Scales(k=0.37, v=2.9))):
        step = _uniform(Mode.TARGET_VERIFY, 4, (9, 6))
        server = served(loaded, served_case(geometry, step, scales=scales))
        server.prepare_step(step)
        key, value = new_keys(server, step, 8)
        pool, layer = server.model_runner.token_to_kv_pool, server.layer
        pool.set_kv_buffer(layer, forward_batch(server, 0).out_cache_loc, key, value, layer.k_scale, layer.v_scale)
        bits = geometry.kv_dtype.bits
        for slot, length in ((0, 9), (1, 6)):
            at = server.pool.locations(slot)[:length]
            assert torch.equal(server.pool.keys.view(bits)[at], server.pool.tokens.keys(slot, length).view(bits))
            assert server.pool.values is not None
            assert torch.equal(server.pool.values.view(bits)[at], server.pool.tokens.values(slot, length).view(bits))


def test_every_number_of_fp8_survives_its_scale() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()]
    for scale in (0.013, 0.37, 1.0, 2.9, 71.0):
        for dtype in (torch.bfloat16, torch.float32):
            handed = (numbers * scale).to(dtype)
            assert torch.equal((handed / scale).to(torch.float8_e4m3fn).float(), numbers)


def test_keys_of_padded_rows_are_finite(loaded: LoadedTree) -> None:
    step = _uniform(Mode.DECODE, 1, (6,), rows=11)
    key, value = new_keys(_served(loaded, step), step, 11)
    assert key.shape == value.shape == (11, GEOMETRY.kv_heads, 8)
    assert bool(key.isfinite().all() and value.isfinite().all())


def test_latents_are_handed_over_whole(loaded: LoadedTree) -> None:
    step = _uniform(Mode.DECODE, 1, (6,))
    key, _ = new_keys(_served(loaded, step, geometry=LATENT), step, 1)
    assert key.shape == (1, 1, 24)


def test_an_unknown_question_to_the_server_ends_the_run(loaded: LoadedTree) -> None:
    file = loaded.release.root / "sglang" / "srt" / "curious.py"
    file.write_text("def init(runner):\n    return runner.server_args.page_size, runner.enable_nothing\n")
    server = _served(loaded, _uniform(Mode.DECODE, 1, (6,)))
    with pytest.raises(Unanswered, match=r"model_runner\.enable_nothing \(sglang/srt/curious\.py:2\)"):
        loaded.module("sglang.srt.curious").init(server.model_runner)
    with pytest.raises(Unanswered):
        ASKED.check()
