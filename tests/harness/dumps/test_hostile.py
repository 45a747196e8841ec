"""A dump is foreign data: what it holds is neither executed nor followed, and what is wrong with it is one line."""

import contextlib
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_maker import DECODE, Dumper, rewrite, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from readable_calls import readable_calls

from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor, OtherValue, RecordedCall

QUERY = torch.arange(4 * 2 * 8, dtype=torch.float32).view(4, 2, 8)

FORMATS = pytest.mark.parametrize("tensor_format", ["torch", "safetensors"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A call whose dump is as it should be, for a test to spoil."""
    return Dumper(tmp_path / "dump").call(DECODE, QUERY, (QUERY, QUERY + 1), max_seq_len=3)


def complaint(folder: Path, read: Callable[[RecordedCall], object] = lambda _: None) -> str:
    """What is said about a dump that can't be read: a line that names something in the folder."""
    with pytest.raises(DumpError) as caught:
        read(readable_calls(folder)[0])
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert str(folder) in message
    return message


def read_query(call: RecordedCall) -> torch.Tensor:
    return stored(call.arguments["query"]).read()


class Touches:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("nested", [True, False])
def test_a_pickle_is_not_executed(tmp_path: Path, folder: Path, nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "executed"
    content = {"arg_0": Touches(marker)} if nested else Touches(marker)
    torch.save(content, folder / "inputs.pt")
    # Whatever the environment says.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert "holds more than tensors, and is not loaded for safety" in complaint(folder, read_query)
    assert not marker.exists()
    # The file does what is feared.
    torch.load(folder / "inputs.pt", weights_only=False)
    assert marker.exists()


def test_a_bare_pickle_is_not_executed(tmp_path: Path, folder: Path) -> None:
    marker = tmp_path / "executed"
    (folder / "inputs.pt").write_bytes(pickle.dumps({"arg_0": Touches(marker)}))
    assert "is cut off or damaged" in complaint(folder, read_query)
    torch.save({"arg_0": QUERY}, folder / "inputs.pt", _use_new_zipfile_serialization=False)
    assert "is cut off or damaged" in complaint(folder, read_query)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        [QUERY],
        QUERY,
        {"arg_0": 3},
        {"arg_0": {"arg_0": QUERY}},
    ],
    ids=["a list", "a tensor", "a number", "a dictionary"],
)
def test_a_file_of_something_else_is_refused(folder: Path, content: object) -> None:
    torch.save(content, folder / "inputs.pt")
    assert "holds something other than named tensors" in complaint(folder, read_query)


@pytest.mark.parametrize(
    "content",
    [QUERY.to_sparse(), torch.empty(4, 2, 8, device="meta")],
    ids=["sparse", "meta"],
)
def test_a_tensor_without_plain_content_is_refused(folder: Path, content: torch.Tensor) -> None:
    torch.save({"arg_0": content}, folder / "inputs.pt")
    assert "which can't be read" in complaint(folder, read_query)


def test_a_tensor_that_claims_more_than_there_is_is_refused(folder: Path) -> None:
    shape = (1 << 20, 1 << 20, 1 << 10)
    torch.save({"arg_0": torch.zeros(1).expand(shape)}, folder / "inputs.pt")
    details = {"shape": shape, "dtype": "torch.float32", "stride": [0, 0, 0]}
    rewrite(folder, tensor_details={"arg_0": details})
    assert "has more elements than the file" in complaint(folder, read_query)


def test_compressed_files_are_not_unpacked(folder: Path) -> None:
    path = folder / "inputs.pt"
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries.items():
            archive.writestr(entry, content)
    assert "has compressed entries" in complaint(folder, read_query)


def test_a_huge_pickle_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.harness.dumps.tensor_files.MAX_PICKLE", 10)
    assert "has a pickle of 0 MiB" in complaint(folder, read_query)


@FORMATS
def test_a_tensor_that_is_missing_or_another_is_named(tmp_path: Path, tensor_format: str) -> None:
    dumper = Dumper(tmp_path, tensor_format=tensor_format)
    folder = dumper.call(DECODE, QUERY)
    rewrite(folder, tensor_details={"arg_0": {"shape": [4, 2, 9], "dtype": "torch.float32", "stride": [18, 9, 1]}})
    assert "is float32 [4, 2, 8], but float32 [4, 2, 9] in its metadata" in complaint(folder, read_query)
    rewrite(folder, tensor_details={"arg_0": {"shape": [4, 2, 8], "dtype": "torch.int32", "stride": [16, 8, 1]}})
    assert "is float32 [4, 2, 8], but int32 [4, 2, 8] in its metadata" in complaint(folder, read_query)
    other = dumper.call(DECODE, key=QUERY)
    (file,) = other.glob("inputs.*")
    file.rename(folder / file.name)
    assert "has no tensor arg_0, which the metadata names" in complaint(folder, read_query)
    (folder / file.name).unlink()
    assert "has no inputs.pt or inputs.safetensors" in complaint(folder)


@pytest.fixture(scope="module", params=["torch", "safetensors"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a call's dump."""
    folder = Dumper(tmp_path_factory.mktemp("whole"), tensor_format=request.param).call(
        DECODE, QUERY, (QUERY, QUERY), max_seq_len=3, out_dtype=torch.bfloat16, result=QUERY, completed=True
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    file=st.sampled_from(["metadata", "inputs", "outputs"]),
    place=st.floats(0, 1, exclude_max=True),
    flip=st.none() | st.integers(1, 255),
)
def test_a_truncated_or_flipped_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, whole: dict[str, bytes], file: str, place: float, flip: int | None
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    for name, content in whole.items():
        damaged = bytearray(content)
        at = int(place * len(content))
        if name.startswith(file):
            damaged[at:] = b"" if flip is None else bytes([content[at] ^ flip]) + content[at + 1 :]
        (folder / name).write_bytes(damaged)
    try:
        _read_all(folder)
    except DumpError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ways are right


def _read_all(folder: Path) -> None:
    for call in readable_calls(folder):
        for value in [*call.arguments.values(), *call.outputs.values()]:
            for member in value if isinstance(value, tuple) else (value,):
                if isinstance(member, ForeignTensor):
                    member.read()


@pytest.mark.parametrize("name", ["inputs.pt", "metadata.jsonl"])
def test_links_out_of_the_dump_are_not_followed(tmp_path: Path, folder: Path, name: str) -> None:
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert f"{name} is a link that leaves" in complaint(folder)
    assert "is a link that leaves" in complaint(folder.parent)


def test_a_folder_that_is_a_link_out_of_the_dump_is_not_followed(tmp_path: Path, folder: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is a link that leaves" in complaint(folder.parent)


def test_links_within_the_dump_are_followed(folder: Path) -> None:
    (folder / "inputs.pt").rename(folder / "kept.pt")
    (folder / "inputs.pt").symlink_to("kept.pt")
    assert readable_calls(folder)


def test_a_link_to_itself_is_reported_as_broken(folder: Path) -> None:
    (folder / "inputs.pt").unlink()
    (folder / "inputs.pt").symlink_to("inputs.pt")
    assert "inputs.pt" in complaint(folder)


@pytest.mark.parametrize("name", ["inputs.pt", "metadata.jsonl", "../session.jsonl"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert "is not a regular file" in complaint(folder.parent)


def test_paths_in_the_metadata_are_not_followed(tmp_path: Path, folder: Path) -> None:
    outside = Dumper(tmp_path / "outside").call(DECODE, QUERY + 9)
    rewrite(
        folder,
        dump_dir=str(outside),
        graph_capture_base_dump_dir=str(outside),
        graph_capture_snapshot_dir=str(outside),
        function_name="../../outside",
    )
    session = folder.parent / "session.jsonl"
    session.write_text(json.dumps({"dump_dir": str(outside)}) + "\n")
    before = sorted(tmp_path.rglob("*"))
    (call,) = readable_calls(folder.parent)
    assert torch.equal(read_query(call), QUERY)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b'{"function_name": "f', "is not a JSON record"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"call_sequence": ' + b"9" * 10_000 + b"}", "is not a JSON record"),
        (b"\xff\xfe{}", "is not a JSON record"),
        (b"[1, 2]", "a list instead of an object"),
        (b"{}", "lacks function_name, call_sequence, process_id"),
        (b'{"function_name": "f", "process_id": 1}', "lacks call_sequence, execution_status"),
    ],
)
def test_metadata_that_is_none_is_refused(folder: Path, text: bytes, reason: str) -> None:
    (folder / "metadata.jsonl").write_bytes(text)
    assert reason in complaint(folder)


@pytest.mark.slow
def test_values_that_are_barely_not_nested_too_deeply_to_be_parsed_do_no_harm(folder: Path) -> None:
    # The parser may have more of the stack left than whoever works on what it returned.
    limit = sys.getrecursionlimit()
    record = json.loads((folder / "metadata.jsonl").read_text()) | {"tensor_info": {"input_tensor_keys": ["arg_0"]}}
    for depth in range(limit - 300, limit):
        nested = json.dumps(record | {"input_metadata": {"arg_1": {"type": "x", "items": ["?"]}}})
        (folder / "metadata.jsonl").write_text(nested.replace('"?"', "[" * depth + "]" * depth))
        with contextlib.suppress(DumpError):
            readable_calls(folder)


def test_a_record_that_is_too_long_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.harness.dumps.folders.MAX_RECORD", 100)
    assert "is not a JSON record" in complaint(folder)


DETAILS = {"shape": [4, 2, 8], "dtype": "torch.float32", "stride": [16, 8, 1]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"function_name": ""}, "names no function"),
        ({"function_name": "f\x1b[2J"}, "names no function"),
        ({"function_name": "f" * 1000}, "names no function"),
        ({"function_name": 3}, "Expected `str`"),
        ({"call_sequence": float("nan")}, "Expected `int`"),
        ({"process_id": "\x1b[2J"}, "Expected `int`"),
        ({"execution_status": "\x1b]0;title\x07"}, "which is not known"),
        ({"input_metadata": [1]}, "Expected `object`"),
        ({"tensor_details": {}}, "does not describe tensor 'arg_0'"),
        ({"tensor_details": {"arg_0": DETAILS | {"shape": [-4, 2, 8]}}}, "Expected `int` >= 0"),
        ({"tensor_details": {"arg_0": DETAILS | {"shape": [1 << 80]}}}, "Expected `int` <="),
        ({"tensor_details": {"arg_0": DETAILS | {"dtype": "torch.save"}}}, "has the dtype 'torch.save'"),
        ({"tensor_details": {"arg_0": DETAILS | {"dtype": "torch.float2"}}}, "has the dtype 'torch.float2'"),
        ({"tensor_details": {"arg_0": DETAILS | {"dtype": "torch.qint8"}}}, "has the dtype 'torch.qint8'"),
        ({"tensor_details": {"arg_0": DETAILS | {"stride": [1]}}}, "has 3 sizes, but 1 strides"),
        ({"function_signature": "()"}, "has 2 positional arguments, but"),
        ({"input_metadata": {"arg_2": 1}}, "has no arg_1"),
        ({"input_metadata": {"arg_1": 1, "arg_999999": 1}}, "has no arg_2"),
        ({"input_metadata": {"arg_1": 1, "kwarg_query": 1}}, "which is not a further parameter"),
        ({"input_metadata": {"arg_1": 1, "kwarg_\x1b[2J": 1}}, "which is not a further parameter"),
        ({"input_metadata": {"arg_1": 1, "self": 1}}, "which is not a further parameter"),
        ({"input_metadata": {"arg_1": [1]}}, "has unexpected contents"),
        ({"input_metadata": {"arg_1": {"value": 1}}}, "has unexpected contents"),
        (
            {"input_metadata": {"arg_1": {"type": "torch.Tensor", "tensor_key": "\x1b[2J"} | DETAILS}},
            "that is not among those of the inputs",
        ),
        ({"tensor_info": {"input_tensor_keys": ["arg_0", "arg_1__0", "arg_1__1", "\x1b[2J"]}}, "not describe tensor"),
        ({"tensor_info": {"input_tensor_keys": []}}, "names a tensor 'arg_1__0' that is not among"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], reason: str) -> None:
    rewrite(folder, **changes)
    assert reason in complaint(folder)


def test_keys_of_another_version_are_passed_over(folder: Path) -> None:
    rewrite(folder, a_new_key={"a": [1]}, timestamp=None, versions=None, module=None, graph_capture=None)
    assert readable_calls(folder)[0].versions == {}


def test_texts_of_a_dump_do_not_reach_a_terminal_as_commands(tmp_path: Path) -> None:
    folder = Dumper(tmp_path, module="\x1b[2J").call("f", x=1, y=2)
    values = {
        "kwarg_x": {"type": "\x1b[2J", "repr": "\x1b[2J" * 5000},
        "kwarg_y": {"type": "enum", "name": "\x07.\x07"},
    }
    rewrite(folder, input_metadata=values, versions={"\x1b[2J": "\x1b[2J\n"})
    (call,) = readable_calls(folder)
    texts = [call.module, *call.versions, *call.versions.values(), *call.lost]
    for name in ("x", "y"):
        value = call.arguments[name]
        assert isinstance(value, OtherValue)
        texts += [value.type_name, value.text]
    assert not any(character in text for text in texts for character in "\x1b\x07")
    assert all(len(text) < 1200 for text in texts)


def test_a_folder_that_is_no_dump_is_refused(tmp_path: Path) -> None:
    assert "holds no dumped call" in complaint(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "session.jsonl").write_text("{}\n")
    assert "holds no dumped call" in complaint(tmp_path)
    assert "is not a folder" in complaint(tmp_path / "session.jsonl")
    assert "is not a folder" in complaint(tmp_path / "missing")


def test_a_call_whose_dump_was_interrupted_is_reported_as_such(folder: Path) -> None:
    (folder / "metadata.jsonl").unlink()
    assert "FlashInfer failed or was killed while dumping this call, or is too old" in complaint(folder.parent)
    folder.rename(folder.parent / "20251119_150823_001_mm_fp4_call0001")
    assert "mm_fp4_call0001 has no metadata.jsonl" in complaint(folder.parent)


@pytest.mark.parametrize("name", ["iterdir", "stat", "open"])
def test_an_unreadable_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(path: Path, *_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, name, refuse)
    assert "Permission denied; check that it exists and that you may read it" in complaint(folder.parent)


def test_a_file_that_can_no_longer_be_opened_is_named(folder: Path) -> None:
    (call,) = readable_calls(folder)
    (folder / "inputs.pt").unlink()
    with pytest.raises(DumpError, match=r"can't read .*inputs.pt: No such file"):
        read_query(call)


def test_lack_of_memory_is_reported_as_such_and_not_as_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise RuntimeError("unable to mmap 42 bytes from file: Cannot allocate memory (12)")

    monkeypatch.setattr(torch, "load", refuse)
    assert "set vm.overcommit_memory to 1" in complaint(folder, read_query)
