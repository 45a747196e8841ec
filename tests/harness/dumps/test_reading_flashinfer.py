"""What the installed FlashInfer dumps is read as what was called."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dump_maker
import pytest
import torch
from dump_maker import DECODE, Dumper, stored

from attnfuzz.harness.dumps.find_calls import read_dump
from attnfuzz.harness.dumps.recorded import CallStatus, RecordedCall

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="reads dumps of FlashInfer"),
]

SCRIPT = Path(dump_maker.__file__).with_name("flashinfer_calls.py")


@pytest.fixture(scope="module", params=["torch", pytest.param("safetensors", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of all the script's calls, in either format."""
    folder = tmp_path_factory.mktemp("flashinfer")
    own = {
        "FLASHINFER_LOGLEVEL": "10",
        "FLASHINFER_LOGDEST": str(folder / "log"),
        "FLASHINFER_DUMP_DIR": str(folder / "dump"),
        "FLASHINFER_DUMP_SAFETENSORS": str(int(request.param == "safetensors")),
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        # With a GPU, FlashInfer would compile kernels for it first.
        "CUDA_VISIBLE_DEVICES": "",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("FLASHINFER_")}
    done = subprocess.run([sys.executable, SCRIPT], env=others | own, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dump"


@pytest.fixture(scope="module")
def calls(folder: Path) -> tuple[RecordedCall, ...]:
    dump = read_dump(folder)
    assert not dump.unreadable
    return dump.calls


@pytest.mark.slow
def test_calls_come_in_the_order_in_which_they_were_made(calls: tuple[RecordedCall, ...]) -> None:
    assert [(call.function, call.sequence, call.snapshot) for call in calls] == [
        (DECODE, 1, None),
        (DECODE, 2, None),
        (DECODE, 3, None),
        ("merge_state", 1, None),
        ("HalvingWrapper.__init__", 1, None),
        ("HalvingWrapper.plan", 1, None),
        ("HalvingWrapper.run", 1, None),
        ("doubled", 1, 1),
        ("doubled", 1, 2),
        ("doubled", 1, 3),
    ]
    assert len({call.process for call in calls}) == 1
    assert all("flashinfer" in call.versions for call in calls)


@pytest.mark.slow
def test_a_crashed_call_has_its_arguments_by_name(calls: tuple[RecordedCall, ...]) -> None:
    call = calls[0]
    assert (call.status, call.module, call.self_id, call.outputs) == (CallStatus.CRASHED, "flashinfer.decode", None, {})
    scalars = {name: value for name, value in call.arguments.items() if isinstance(value, int | float | torch.dtype)}
    assert scalars == {"max_seq_len": 32, "bmm1_scale": 0.125, "bmm2_scale": 1.0, "out_dtype": torch.bfloat16}
    assert stored(call.arguments["block_tables"]).read().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    pages = stored(call.arguments["kv_cache"])
    assert (pages.shape, pages.dtype) == ((10, 2, 2, 16, 64), torch.float32)
    first = torch.arange(2 * 2 * 16 * 64, dtype=torch.float32).view(2, 2, 16, 64)
    assert torch.equal(pages.rows(torch.tensor([7, 0])), torch.stack([first + 7 * first.numel(), first]))


@pytest.mark.slow
def test_the_stride_of_a_tensor_is_reported_where_the_dump_has_it(calls: tuple[RecordedCall, ...]) -> None:
    whole, paired = calls[0], calls[1]
    assert stored(whole.arguments["query"]).stride == (64, 256, 1)
    assert stored(whole.arguments["kv_cache"]).stride is None
    assert "The strides of kv_cache, workspace_buffer, block_tables, seq_lens are not recorded" in " ".join(whole.lost)
    pair = paired.arguments["kv_cache"]
    assert isinstance(pair, tuple)
    assert [stored(member).stride for member in pair] == [(4096, 1024, 64, 1)] * 2
    assert stored(pair[1]).read().flatten()[0] == 2048


def test_scalars_that_are_not_finite_are_read(calls: tuple[RecordedCall, ...]) -> None:
    scale = calls[1].arguments["bmm1_scale"]
    assert isinstance(scale, float)
    assert math.isinf(scale)


def test_rows_of_fp8_are_read(calls: tuple[RecordedCall, ...]) -> None:
    rows = stored(calls[2].arguments["kv_cache"]).rows(torch.tensor([0]))
    assert rows.dtype == torch.float8_e4m3fn
    assert rows.float().flatten()[:4].tolist() == [0, 1, 2, 3]


def test_the_calls_of_a_wrapper_are_reported_by_its_object(calls: tuple[RecordedCall, ...]) -> None:
    begun, planned, run = calls[4:7]
    assert begun.self_id is not None
    assert begun.self_id == planned.self_id == run.self_id
    assert list(begun.arguments) == ["divisor"]
    assert (set(planned.arguments), planned.arguments["dtype"]) == ({"lengths", "dtype"}, torch.float16)
    assert run.status is CallStatus.COMPLETED
    assert stored(run.arguments["values"]).stride == (1, 3)
    assert stored(run.outputs["result_0"]).read().tolist() == [[0, 1.5], [0.5, 2], [1, 2.5]]
    assert run.outputs["result_1"] is None


def test_each_replay_of_a_graph_and_the_exit_is_a_call_with_its_own_contents(calls: tuple[RecordedCall, ...]) -> None:
    replays = calls[7:]
    assert {call.status for call in replays} == {CallStatus.CAPTURED}
    assert [stored(call.arguments["lengths"]).read().tolist() for call in replays] == [[3, 4], [5, 6], [5, 6]]
    assert [stored(call.outputs["result"]).read().tolist() for call in replays] == [[6, 8], [10, 12], [10, 12]]
    assert all("after a replay" in " ".join(call.lost) for call in replays)


def test_the_folder_of_one_call_can_be_read(calls: tuple[RecordedCall, ...]) -> None:
    for call in calls[:1] + calls[7:8]:
        (alone,) = read_dump(call.folder).calls
        assert (alone.function, alone.arguments.keys()) == (call.function, call.arguments.keys())
    captured = calls[7].folder.parent.parent
    assert [call.snapshot for call in read_dump(captured).calls] == [1, 2, 3]


def test_without_the_session_the_order_is_that_of_time(tmp_path: Path, folder: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copied", ignore=shutil.ignore_patterns("session.jsonl")))
    assert [call.function for call in read_dump(copied).calls] == [call.function for call in read_dump(folder).calls]


def test_the_fake_dumps_have_the_keys_of_the_real_ones(tmp_path: Path, folder: Path) -> None:
    fake, query = Dumper(tmp_path), torch.zeros(4, 4, 64)
    made = fake.call(DECODE, query, (query, query))
    completed = fake.call("HalvingWrapper.run", object(), query, self_id=1, result=(query, None), completed=True)
    captured = fake.captured("doubled", (query,), query, [((query,), query)])
    real = {path.name.split("_", 4)[-1]: path for path in folder.iterdir() if path.is_dir()}
    for mine, name in (
        (made, f"{DECODE}_call0002"),
        (completed, "HalvingWrapper.run_call0001"),
        (captured, "doubled_call0001"),
        (captured / "graph_flushes/flush_0001", "doubled_call0001/graph_flushes/flush_0001"),
    ):
        theirs = real[name.split("/")[0]] / name.partition("/")[2]
        assert _keys(mine) == _keys(theirs)[: len(_keys(mine))]


def _keys(folder: Path) -> list[set[str]]:
    """The keys of each record, those within keys included."""
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    return [_all_keys(json.loads(line)) for line in lines]


def _all_keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_all_keys, value))
    if not isinstance(value, dict):
        return set()
    # What an argument is called differs.
    own = {key for key in value if not key.startswith(("arg_", "kwarg_", "result"))}
    return own.union(*map(_all_keys, value.values()))
