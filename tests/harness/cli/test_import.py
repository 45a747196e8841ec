"""`attnfuzz import`: from a dump to a case file, and what to type next."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Attnfuzz
from dump_maker import DECODE, Dumper
from refusals import refused

from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case_file import INLINE_BYTES


def arguments(last_page: int = 4, slots: int = 4) -> dict[str, Any]:
    return {
        "query": torch.ones(2, 4, 8),
        "kv_cache": (torch.ones(9, 2, slots, 8), torch.ones(9, 2, slots, 8)),
        "workspace_buffer": torch.zeros(1 << 14, dtype=torch.uint8),
        "block_tables": torch.tensor([[7, 2], [8, last_page]], dtype=torch.int32),
        "seq_lens": torch.tensor([slots + 2, 2 * slots], dtype=torch.int32),
        "max_seq_len": 2 * slots,
    }


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A call that crashed on a page id past the pool's end, and one after it that did not."""
    dumper = Dumper(tmp_path / "dump")
    dumper.call(DECODE, **arguments(last_page=9))
    dumper.call(DECODE, completed=True, result=torch.ones(2, 4, 8), **arguments())
    return tmp_path / "dump"


def imported(path: Path) -> CallCase:
    case = case_file.load(path)
    assert isinstance(case, CallCase)
    return case


def nothing_imported(ran: Any, *words: str, sent_before: tuple[str, ...] = ()) -> None:
    """It is refused, and no case is left behind."""
    refused(ran, *words, sent_before=sent_before)
    assert not [*Path.cwd().glob("*.json")]


def test_the_calls_of_a_dump_are_listed(attnfuzz: Attnfuzz, dump: Path) -> None:
    ran = attnfuzz("import", str(dump), "--list")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert [(row[0], row[2], row[-1]) for row in rows if row[0].isdigit()] == [
        ("1", "crashed", "1"),
        ("2", "completed", "0"),
    ]
    assert not [*Path.cwd().glob("*.json")]


def test_the_call_that_crashed_is_imported_and_reported(attnfuzz: Attnfuzz, dump: Path) -> None:
    ran = attnfuzz("import", str(dump))
    assert ran.code == 0
    (path,) = Path.cwd().glob("*.json")
    case = imported(path)
    assert path.name == f"{DECODE}-{case_file.case_id(case)}.json"
    text = " ".join(ran.out.split())
    assert f"Imported call 1 of 2 into {path.name}" in text
    assert all(" ".join(note.split()) in text for note in case.notes)
    assert "Its caller broke the contract: " in text
    for command in ("triage", "shrink", "export"):
        assert f"attnfuzz {command} {path.name}" in text


def test_another_call_goes_where_it_is_wanted(attnfuzz: Attnfuzz, dump: Path) -> None:
    ran = attnfuzz("import", str(dump), "--call", "2", "-o", "mine.json", "--contents", "seed", "--seed", "3")
    assert ran.code == 0
    assert "Its caller broke no known precondition" in ran.out
    drawn = [buffer.drawn for buffer in imported(Path("mine.json")).buffers if buffer.drawn is not None]
    assert sorted(each.seed for each in drawn) == [3, 4, 5]


@pytest.mark.slow
def test_an_imported_case_can_be_replayed(attnfuzz: Attnfuzz, dump: Path) -> None:
    attnfuzz("import", str(dump), "-o", "bad.json")
    attnfuzz("import", str(dump), "--call", "2", "-o", "good.json")
    assert attnfuzz("replay", "bad.json").code == 1
    assert attnfuzz("replay", "good.json").code == 0


def test_one_folder_of_a_dump_is_a_dump(attnfuzz: Attnfuzz, dump: Path) -> None:
    folder = sorted(each for each in dump.iterdir() if each.is_dir())[1]
    assert "Imported call 1 of 1" in attnfuzz("import", str(folder)).out


def test_earlier_calls_come_along(attnfuzz: Attnfuzz, dump: Path) -> None:
    assert attnfuzz("import", str(dump), "--call", "2", "--earlier", "1", "-o", "both.json").code == 0
    assert len(imported(Path("both.json")).calls) == 2


def test_large_contents_lie_beside_the_case(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    given = arguments(slots=512)
    key, value = given["kv_cache"]
    assert key.nbytes > INLINE_BYTES
    Dumper(tmp_path / "large").call(DECODE, **given | {"kv_cache": (key.normal_(), value.normal_())})
    assert attnfuzz("import", str(tmp_path / "large"), "-o", "large.json").code == 0
    assert Path("large.payloads.safetensors").exists()
    assert imported(Path("large.json")).answer is not None


def test_a_failed_import_is_reported_in_one_line_and_leaves_no_file(attnfuzz: Attnfuzz, dump: Path) -> None:
    nothing_imported(attnfuzz("import", str(dump / "nowhere")), "nowhere", "FLASHINFER_DUMP_DIR")
    nothing_imported(attnfuzz("import", str(dump), "--call", "5"), "numbered from 1 to 2", "--list")
    nothing_imported(
        attnfuzz("import", str(dump), "--earlier", "1"), "only 0 calls with a backend precede", "--earlier"
    )
    nothing_imported(attnfuzz("import", str(dump), "--backend", "torch_sdpa"), "torch_sdpa has no kernel", DECODE)
    nothing_imported(attnfuzz("import", str(dump), "--backend", "trtllm"), "unknown backend")


def test_calls_that_can_not_be_read_are_reported_and_left_out(attnfuzz: Attnfuzz, dump: Path) -> None:
    first, second = sorted(each for each in dump.iterdir() if each.is_dir())
    (first / "metadata.jsonl").write_text("{")
    ran = attnfuzz("import", str(dump), "-o", "second.json")
    assert ran.code == 0
    assert ran.err.startswith("Skipped: ")
    assert first.name in ran.err
    (second / "metadata.jsonl").write_text("{")
    Path("second.json").unlink()
    nothing_imported(attnfuzz("import", str(dump)), "no call of", sent_before=("Skipped: ",))


def test_tensors_that_are_cut_off_leave_no_file(attnfuzz: Attnfuzz, dump: Path) -> None:
    for file in dump.glob("*/inputs.pt"):
        file.write_bytes(file.read_bytes()[:-4000])
    nothing_imported(attnfuzz("import", str(dump)), "inputs.pt")
