"""Case files: what is written is read again, and what is damaged, foreign or impossible is refused in one line."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from attnfuzz.reference.calls import Buffer, Call, CallCase, View, pack
from attnfuzz.reference.case import (
    Case,
    Guard,
    KvView,
    Launch,
    Mode,
    Outputs,
    PageOrder,
    Pages,
    QueryView,
    Request,
    Scales,
    Step,
    TableTail,
    ValueFamily,
    Views,
    Workspace,
)
from attnfuzz.reference.case_file import INLINE_BYTES, CaseFileError, case_id, decode, encode, load, save
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout, Latent
from attnfuzz.reference.serving import Interleave, ServedQueries, SharedKeys

PLAIN = Case(
    backend="trtllm_mha",
    geometry=Geometry(q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16),
    steps=(Step(mode=Mode.EXTEND, requests=(Request(0, 2, 5), Request(1, 3, 3)), padded_tokens=5),),
)
CAPTURE = Step(mode=Mode.DRAFT_EXTEND, requests=(), padded_tokens=8, tokens_per_request=4, launch=Launch.CAPTURE)
FULL = Case(
    backend="trtllm_mla@22688-before",
    geometry=Geometry(
        q_heads=4,
        kv_heads=1,
        head_dim_qk=40,
        head_dim_vo=32,
        page_size=16,
        dtype=DType.FLOAT16,
        kv_dtype=DType.FLOAT8_E4M3,
        kv_layout=KvLayout.NHD,
        window_left=3,
        sinks=True,
        soft_cap=30.0,
        latent=Latent(32, 8, 16, 16),
    ),
    steps=(CAPTURE, replace(CAPTURE, requests=(Request(0, 3, 17),), launch=Launch.REPLAY)),
    pages=Pages(order=PageOrder.SHUFFLED, tail=TableTail.POISON, spare=3, table_slack=2),
    values=ValueFamily.PEAKED,
    scales=Scales(softmax=0.5, k=1.7, v=0.37),
    views=Views(query=QueryView.HEAD_GAP, kv=KvView.TOKEN_MAJOR, table_gap=1),
    workspace=Workspace.DIRTY,
    outputs=Outputs.STALE,
    max_len_slack=7,
    chunk_capacity=12,
    guard=Guard.LEFT,
    seed=(1 << 63) - 1,
)


QUANTISED = replace(
    PLAIN,
    geometry=replace(PLAIN.geometry, kv_dtype=DType.FLOAT8_E4M3),
    queries=ServedQueries(scale=0.5, kept=True),
)


SHARED = replace(PLAIN, shared_keys=SharedKeys(ranks=4, interleave=Interleave.QUARTER_PAGE, all_to_all=True))


@pytest.mark.parametrize("case", [PLAIN, FULL, QUANTISED, SHARED])
def test_written_cases_are_read_back(case: Case, tmp_path: Path) -> None:
    assert decode(encode(case)) == case
    save(tmp_path / "case.json", case)
    assert load(tmp_path / "case.json") == case
    assert [path.name for path in tmp_path.iterdir()] == ["case.json"]


def test_files_omit_defaults_and_fold_short_objects_into_a_line() -> None:
    assert (
        encode(PLAIN).decode()
        == """{
  "format": "attnfuzz-case",
  "version": 1,
  "kind": "steps",
  "backend": "trtllm_mha",
  "geometry": {"q_heads": 4, "kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16},
  "steps": [
    {
      "mode": "extend",
      "requests": [{"slot": 0, "q_len": 2, "kv_len": 5}, {"slot": 1, "q_len": 3, "kv_len": 3}],
      "padded_tokens": 5
    }
  ]
}
"""
    )


def test_ids_depend_on_content_alone() -> None:
    assert case_id(PLAIN) == case_id(decode(encode(PLAIN)))
    assert case_id(PLAIN) != case_id(replace(PLAIN, seed=1))
    assert len(case_id(PLAIN)) == 12
    assert int(case_id(PLAIN), 16) >= 0


def test_equal_numbers_of_other_types_have_the_same_id() -> None:
    scaled = replace(PLAIN, scales=Scales(k=2.0))
    content = json.loads(encode(scaled))
    content["scales"]["k"] = 2
    assert case_id(decode(json.dumps(content).encode())) == case_id(scaled)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "pickle"}, 'not a case file: it must be a JSON object with "format": "attnfuzz-case"'),
        ({"version": 2}, "case file version 2: this attnfuzz reads version 1; use the one that wrote the file"),
        ({"version": None}, "case file version None"),
        ({"kind": "dreams"}, "not a case: Invalid value 'dreams' - at `$.kind`"),
        ({"colour": "red"}, "not a case: Object contains unknown field `colour`"),
        ({"seed": "7"}, "not a case: Expected `int`, got `str` - at `$.seed`"),
        ({"values": "pretty"}, "not a case: Invalid enum value 'pretty' - at `$.values`: give one of normal, "),
        (
            {"steps": [{"mode": "chunked", "requests": []}]},
            "not a case: Invalid enum value 'chunked' - at `$.steps[0].mode`: give one of decode, ",
        ),
        ({"steps": [{"mode": "decode"}]}, "not a case: Object missing required field `requests` - at `$.steps[0]`"),
        ({"seed": -1}, "an impossible case: seed is -1"),
        ({"backend": ""}, "an impossible case: backend is ''"),
    ],
)
def test_content_that_is_no_case_is_refused(change: dict[str, object], message: str) -> None:
    content = json.loads(encode(PLAIN)) | change
    with pytest.raises(CaseFileError) as caught:
        decode(json.dumps(content).encode())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\x00\xff", encode(PLAIN)[:-20], b"[1]", b"7", b'{"format": "attnfuzz-case"}'])
def test_damaged_data_is_refused(data: bytes) -> None:
    with pytest.raises(CaseFileError):
        decode(data)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaseFileError, match=r"cannot read .*absent\.json: No such file or directory"):
        load(tmp_path / "absent.json")
    with pytest.raises(CaseFileError, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "torn.json").write_bytes(encode(PLAIN)[:40])
    with pytest.raises(CaseFileError, match=r"torn\.json: not JSON"):
        load(tmp_path / "torn.json")


SMALL_CALLS = CallCase(
    backend="torch_sdpa",
    buffers=(
        Buffer(name="x", dtype=DType.BFLOAT16, size=3, bits=pack(b"\x81\x7f\x00\x80\x00\x3f")),
        Buffer(name="ids", dtype=DType.INT32, size=2, values=(1, -1)),
        Buffer(name="out", dtype=DType.FLOAT8_E4M3, size=8),
    ),
    calls=(
        Call(
            op="attend",
            arguments={"x": View(buffer="x", shape=(3,), stride=(1,)), "n": 3, "scale": 0.5, "sinks": None},
            writes=(Buffer(name="x", dtype=DType.BFLOAT16, size=1, offset=2, bits=pack(b"\x00\x40")),),
        ),
    ),
    mode="decode",
    guard=Guard.LEFT,
)


def large_calls() -> CallCase:
    """Calls with more content than belongs into a JSON file."""
    numbers = torch.arange(INLINE_BYTES // 2, dtype=torch.int64).to(torch.int16)
    content = bytes(numbers.view(torch.uint8).numpy())
    large = Buffer(name="kv", dtype=DType.FLOAT8_E4M3, size=len(content), bits=pack(content))
    return replace(SMALL_CALLS, buffers=(*SMALL_CALLS.buffers, large))


def test_calls_are_written_and_read_again(tmp_path: Path) -> None:
    assert decode(encode(SMALL_CALLS)) == SMALL_CALLS
    save(tmp_path / "case.json", SMALL_CALLS)
    assert load(tmp_path / "case.json") == SMALL_CALLS
    assert [path.name for path in tmp_path.iterdir()] == ["case.json"]


def test_large_contents_lie_beside_the_case(tmp_path: Path) -> None:
    case = large_calls()
    save(tmp_path / "case.json", case)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["case.json", "case.payloads.safetensors"]
    assert (tmp_path / "case.json").stat().st_size < 2000
    loaded = load(tmp_path / "case.json")
    assert loaded == case
    assert case_id(loaded) == case_id(case)


def test_a_case_that_became_small_leaves_no_contents_beside_it(tmp_path: Path) -> None:
    save(tmp_path / "case.json", large_calls())
    save(tmp_path / "case.json", SMALL_CALLS)
    assert [path.name for path in tmp_path.iterdir()] == ["case.json"]


def test_contents_that_are_missing_or_wrong_are_named(tmp_path: Path) -> None:
    path, beside = tmp_path / "case.json", tmp_path / "case.payloads.safetensors"
    save(path, large_calls())
    whole = beside.read_bytes()

    def refusal() -> str:
        with pytest.raises(CaseFileError) as caught:
            load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    save_file({"x": torch.zeros(3, dtype=torch.bfloat16)}, beside)
    assert "case.payloads.safetensors has no entry" in refusal()
    save_file({"x": torch.zeros(4), "kv": torch.zeros(3)}, beside)
    assert "entry x of " in refusal()
    assert "is float32 [4], but buffer x is bfloat16 [3]" in refusal()
    beside.write_bytes(whole[: len(whole) // 2])
    assert "which is damaged" in refusal()
    beside.unlink()
    assert "case.payloads.safetensors, which can't be read" in refusal()
    with pytest.raises(CaseFileError, match="load the case from its file"):
        decode(path.read_bytes())


def test_the_documented_schema_is_that_of_the_types() -> None:
    """If it is not: python docs/reference/_cases.py --schema > docs/reference/case-schema.json."""
    folder = Path(__file__).parents[2] / "docs" / "reference"
    assert (folder / "case-schema.json").read_text() == runpy.run_path(str(folder / "_cases.py"))["text"]()
