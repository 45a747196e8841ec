"""Files of others: bounded, never blocking, and every defect of their JSON is a DecodeError."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from attnfuzz.reference.foreign import MOST_DEPTH, decode_json, read_bytes


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123")
    assert read_bytes(tmp_path / "file", most=4) == b"0123"


def test_a_larger_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"01234")
    with pytest.raises(OSError, match="larger than") as refused:
        read_bytes(tmp_path / "file", most=4)
    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(tmp_path / "file"))


def test_a_path_that_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_a_path_with_a_nul_is_an_os_error() -> None:
    with pytest.raises(OSError, match="null"):
        read_bytes("a\0b")


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', nested(100_000), nested(MOST_DEPTH + 1), b"", b"{"])
def test_damaged_json_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(data)


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b'{"b": ' + nested(100_000) + b"}"])
def test_so_it_is_where_a_type_is_expected(data: bytes) -> None:
    class Named(msgspec.Struct):
        a: str = ""

    with pytest.raises(msgspec.DecodeError):
        decode_json(data, Named)


def test_json_may_nest_so_deep() -> None:
    assert msgspec.json.encode(decode_json(nested(MOST_DEPTH))) == nested(MOST_DEPTH)
