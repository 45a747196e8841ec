"""Calibrations as files: they come back as they were, hold for their architecture alone, and say what is wrong."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.reference.calibration import (
    Calibration,
    CalibrationError,
    Fit,
    Quantiles,
    Seen,
    architecture,
    load,
    save,
    shipped_noise,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel, Origin

THEORY = NoiseModel.fp32_arithmetic()
MEASURED = replace(THEORY, logits=THEORY.logits / 4, origin=Origin.CALIBRATED)
SEEN = Quantiles(median=0.1, p999=0.3, largest=0.4)
CALIBRATION = Calibration(
    backend="mine",
    architecture=architecture(),
    date="2026-01-01",
    command="attnfuzz calibrate --backend mine",
    seed=1,
    versions={"torch": "2.13"},
    dtypes={
        DType.FLOAT32: Fit(
            rows=1000,
            longest=64,
            noise=MEASURED,
            theory=THEORY,
            fitted=("logits",),
            seen={"T1": Seen(theory=SEEN, fitted=SEEN)},
            margins={"T1": 0.4},
        )
    },
)


def attend(**_: object) -> None:
    """A kernel that is only asked for its noise model."""


def test_a_calibration_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    save(tmp_path / "new" / "file.json", CALIBRATION)
    assert load(tmp_path / "new" / "file.json") == CALIBRATION


def test_a_calibration_is_used_for_the_dtypes_that_it_measured() -> None:
    backend = FunctionBackend(attend, calibration=CALIBRATION)
    assert backend.noise(DType.FLOAT32) == MEASURED
    assert backend.noise(DType.FLOAT16) == NoiseModel.unknown_kernel()


def test_a_calibration_of_another_architecture_is_passed_over() -> None:
    elsewhere = FunctionBackend(attend, calibration=replace(CALIBRATION, architecture="mips-NONE"))
    assert elsewhere.noise(DType.FLOAT32) == NoiseModel.unknown_kernel()


def test_a_backend_without_a_calibration_that_ships_keeps_its_theory() -> None:
    assert shipped_noise("nobody", DType.FLOAT32, THEORY) == THEORY


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "is not a calibration"),
        ('{"format": "attnfuzz-calibration", "version": 99}', "version 99"),
        ('{"format": "attnfuzz-calibration", "version": 1}', "damaged"),
    ],
)
def test_a_file_that_holds_none_says_why(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(CalibrationError, match=words):
        load(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="attnfuzz calibrate"):
        load(tmp_path / "none.json")
