"""Margins of several campaigns: rows add up and the largest margin stays, unless the bounds differ."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.reference import calibration, recorded_margins
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.recorded_margins import MarginsError, RecordedMargins, encoded, load, shipped

FIRST = RecordedMargins(
    backend="a",
    architecture="sm_90",
    dtype=DType.BFLOAT16,
    rows=10,
    margins={"T1": 0.5, "T2": 0.1},
    noise=NoiseModel.unknown_kernel(),
    date="2026-11-29",
    machine="NVIDIA H200",
    versions={"attnfuzz": "1"},
)


def stored(folder: Path, *records: RecordedMargins) -> tuple[RecordedMargins, ...]:
    path = folder / "margins.json"
    path.write_bytes(encoded(records))
    return load(path)


def test_records_with_the_same_bounds_add_up(tmp_path: Path) -> None:
    later = replace(FIRST, rows=5, margins={"T1": 0.2, "T4": 0.3}, date="2026-11-30")
    both = replace(FIRST, rows=15, margins={"T1": 0.5, "T2": 0.1, "T4": 0.3}, date="2026-11-30")
    assert stored(tmp_path, FIRST, later) == (both,)


@pytest.mark.parametrize(
    "change", [{"noise": NoiseModel.fp32_arithmetic()}, {"versions": {"attnfuzz": "2"}}], ids=["noise", "version"]
)
def test_a_record_with_other_bounds_replaces_the_earlier_one(tmp_path: Path, change: dict[str, object]) -> None:
    later = replace(FIRST, rows=1, margins={"T1": 0.1}, **change)
    assert stored(tmp_path, FIRST, later) == (later,)


def test_dtypes_and_architectures_have_their_own_records(tmp_path: Path) -> None:
    others = [replace(FIRST, dtype=DType.FLOAT16), replace(FIRST, architecture="sm_100"), replace(FIRST, backend="b")]
    assert len(stored(tmp_path, FIRST, *others)) == 4


def test_a_damaged_file_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "margins.json"
    for content in (b"{}", b"[", b'[{"backend": "a"}]'):
        path.write_bytes(content)
        with pytest.raises(MarginsError, match=r"no list of margins.*delete it"):
            load(path)


def test_shipped_margins_of_a_campaign_are_shown_instead_of_those_of_the_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated = {record.subject: record for record in shipped()}
    subject = ("torch_sdpa", "x86_64-AVX512", DType.FLOAT16)
    assert calibrated[subject].margins["T1"] > 0
    for path in calibration.SHIPPED.glob("torch_sdpa-*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    record = replace(FIRST, backend=subject[0], architecture=subject[1], dtype=subject[2])
    (tmp_path / "margins-x86_64-AVX512.json").write_bytes(encoded([record]))
    monkeypatch.setattr(recorded_margins, "SHIPPED", tmp_path)
    assert [each for each in shipped() if each.subject == subject] == [record]
