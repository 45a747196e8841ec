"""What FlashInfer 0.7.2.post1 dumped on an H200 becomes the cases that its calls were.

`h200` has the metadata as it was written. Of the tensors, whose contents change nothing here, it has none: queries and
caches are drawn, lengths and page ids are those of the calls.
"""

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Attnfuzz
from readable_calls import readable_calls

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.dumps.recorded import CallStatus
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase

DECODE = "trtllm_batch_decode_with_kv_cache"
FAR = 1 << 24
INTEGERS = {
    # Of the decode, as it is handed on to XQA's wrapper and to XQA: page table and lengths.
    DECODE: {"arg_3": [0, 1, 2, 3, 4, 5, FAR, 7, 8, 9, 10, 11], "arg_4": [5, 33, 64]},
    "xqa_batch_decode_with_kv_cache": {
        "kwarg_block_tables": [0, 1, 2, 3, 4, 5, FAR, 7, 8, 9, 10, 11],
        "kwarg_seq_lens": [5, 33, 64],
    },
    "xqa": {"arg_3": [0, 1, 2, 3, 4, 5, FAR, 7, 8, 9, 10, 11], "arg_4": [5, 33, 64]},
    "BatchDecodeWithPagedKVCacheWrapper.plan": {
        "arg_1": [0, 1, 4, 8],
        "arg_2": [0, 1, 2, 3, 4, 5, 6, 7],
        "arg_3": [5, 1, 16],
    },
}
DTYPES = {"torch.bfloat16": "BF16", "torch.uint8": "U8", "torch.int32": "I32"}


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], zeros: Mapping[str, int]) -> None:
    """A file of tensors, then of so many zero bytes each, which take no room on the disk."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": DTYPES[str(tensor.dtype)], "shape": [*tensor.shape]}
        header[name]["data_offsets"] = [end, end := end + tensor.nbytes]
    for name, size in zeros.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end := end + size]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.flatten().view(torch.uint8).numpy().tobytes())
        file.truncate(8 + len(text) + end)


def complete(folder: Path) -> None:
    """Write the tensors that a call's metadata names."""
    generator = torch.Generator().manual_seed(1)
    record = json.loads((folder / "metadata.jsonl").read_text().splitlines()[-1])
    for kind in ("input", "output"):
        tensors, zeros = {}, {}
        for key in record["tensor_info"][f"{kind}_tensor_keys"]:
            details = record["tensor_details"][key]
            if details["dtype"] == "torch.uint8":
                (zeros[key],) = details["shape"]
            elif details["dtype"] == "torch.int32":
                given = INTEGERS[record["function_name"]][key]
                tensors[key] = torch.tensor(given, dtype=torch.int32).view(details["shape"])
            else:
                tensors[key] = torch.randn(details["shape"], generator=generator).bfloat16()
        if tensors or zeros:
            write_tensors(folder / f"{kind}s.safetensors", tensors, zeros)


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[[str], Path]:
    """The folder of a dump, complete."""

    def whole(name: str) -> Path:
        shutil.copytree(Path(__file__).with_name("h200") / name, tmp_path / name)
        for metadata in (tmp_path / name).glob("*/metadata.jsonl"):
            complete(metadata.parent)
        return tmp_path / name

    return whole


def imported(attnfuzz: Attnfuzz, dump: Path) -> tuple[CallCase, Any]:
    ran = attnfuzz("import", str(dump), "-o", str(dump / "case.json"))
    assert ran.code == 0, ran.err
    case = case_file.load(dump / "case.json")
    assert isinstance(case, CallCase)
    return case, ran


def test_calls_within_calls_are_all_read(dumped: Callable[[str], Path]) -> None:
    # XQA returns nothing that would be copied, so that its crash shows in the call around it only.
    assert [(call.function, call.status) for call in readable_calls(dumped("crashed"))] == [
        (DECODE, CallStatus.CRASHED),
        ("xqa_batch_decode_with_kv_cache", CallStatus.CRASHED),
        ("xqa", CallStatus.COMPLETED),
    ]


@pytest.mark.slow
def test_of_calls_within_calls_the_one_with_a_backend_is_imported(
    attnfuzz: Attnfuzz, runner: Runner, dumped: Callable[[str], Path]
) -> None:
    case, ran = imported(attnfuzz, dumped("crashed"))
    words = " ".join(ran.out.split())
    assert "Imported call 1 of 3" in words
    assert f"block_tables[1, 2] is page {FAR}, which request 1 needs for its 33 keys" in words
    assert [call.op for call in case.calls] == [DECODE]
    assert runner.verdict(case).failures[0].kind is Kind.ILLEGAL_ACCESS


def test_the_run_of_a_wrapper_is_imported_as_a_call_with_the_pages_of_its_plan(
    attnfuzz: Attnfuzz, runner: Runner, dumped: Callable[[str], Path]
) -> None:
    case, ran = imported(attnfuzz, dumped("wrapper"))
    assert "That function replaces the run of a BatchDecodeWithPagedKVCacheWrapper" in " ".join(ran.out.split())
    given = literal_arguments(case, 0)
    assert given["seq_lens"].tolist() == [5, 33, 64]
    assert [row[:pages] for row, pages in zip(given["block_tables"].tolist(), (1, 3, 4), strict=True)] == [
        [0],
        [1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert (given["max_seq_len"], given["bmm1_scale"], given["bmm2_scale"], given["kv_layout"]) == (64, 0.125, 1, "HND")
    assert case.answer is not None
    assert runner.verdict(case).failures == ()


def test_a_backend_without_an_lse_is_not_asked_for_one(attnfuzz: Attnfuzz, dumped: Callable[[str], Path]) -> None:
    dump = dumped("wrapper")
    assert "lse" in imported(attnfuzz, dump)[0].calls[0].arguments
    ran = attnfuzz("import", str(dump), "--backend", "hopper:trtllm_mha", "-o", str(dump / "gpu.json"))
    assert ran.code == 0, ran.err
    case = case_file.load(dump / "gpu.json")
    assert isinstance(case, CallCase)
    assert not {"lse", "return_lse"} & set(case.calls[0].arguments)
