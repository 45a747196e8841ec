"""Fits to what a real kernel computes on drawn cases."""

from pathlib import Path

import pytest

from attnfuzz.harness.calibrate import sample
from attnfuzz.harness.calibrate.apart import CalibrationRequest, NoCalibration, measure_apart
from attnfuzz.harness.calibrate.calibrate import Measured, measure
from attnfuzz.harness.calibrate.fit import PARAMETERS
from attnfuzz.harness.calibrate.margins import quantiles
from attnfuzz.harness.calibrate.sample import CannotCalibrate
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel, Origin

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "my_backend.py"
SHORT = """
from attnfuzz.harness.calibrate import sample
sample._EXAMPLES_AT_ONCE, sample.long_cases = 10, lambda *_: ()
"""
"""What `_short` does, in the worker that imports a backend's file."""
IMPORTS = """
import os
from attnfuzz.kernels.functions.function_backend import *
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
"""
CAPABILITY = "Capability(modes=(Mode.DECODE,), layouts=(KvLayout.NHD,), dtypes=(DType.FLOAT32,), max_head_dim=32)"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few cases, and leave out the long ones: they take most of the time."""
    monkeypatch.setattr(sample, "_EXAMPLES_AT_ONCE", 10)
    monkeypatch.setattr(sample, "long_cases", lambda *_: ())


def measured(backend: str, dtype: DType, *, rows: int, seed: int) -> Measured:
    *sent, last = measure(backend, dtype, rows=rows, seed=seed)
    assert all(isinstance(each, str) for each in sent)
    assert isinstance(last, Measured)
    return last


@pytest.mark.slow
def test_a_fit_tightens_and_holds_for_the_rows_held_out() -> None:
    found = measured("trtllm_mha", DType.FLOAT32, rows=2000, seed=1).fit
    assert found.rows >= 2000
    assert found.noise.origin is Origin.CALIBRATED
    assert found.fitted
    assert all(getattr(found.noise, name) <= getattr(found.theory, name) for name in PARAMETERS)
    assert max(found.margins.values()) <= 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_EXAMPLES_AT_ONCE", 4)
    first, second = (measured("torch_sdpa", DType.FLOAT32, rows=100, seed=3) for _ in range(2))
    assert first.fit == second.fit


@pytest.mark.slow
def test_errors_above_the_theory_are_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = NoiseModel(probabilities=1e-12, logits=1e-12, accumulate=1e-12, exponential=1e-12)
    monkeypatch.setattr(SdpaBackend, "theory", lambda *_: tight)
    with pytest.raises(CannotCalibrate, match="fuzz it first"):
        measured("torch_sdpa", DType.BFLOAT16, rows=300, seed=1)


def test_a_backend_that_raises_cannot_be_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(SdpaBackend, "open", broken)
    with pytest.raises(CannotCalibrate, match="broken"):
        measured("torch_sdpa", DType.FLOAT32, rows=1000, seed=1)


def small_backend(folder: Path, first: str = "pass") -> str:
    """A file with the backend of the examples, for small heads in fp32 alone, that does something at `first`."""
    text = EXAMPLE.read_text().replace("    for b, kv_len", f"    {first}\n    for b, kv_len")
    text = text.replace("FunctionBackend(attend)", f"FunctionBackend(attend, capability={CAPABILITY})")
    (folder / "small.py").write_text(f"{IMPORTS}{SHORT}{text}")
    return f"{folder / 'small.py'}:MINE"


@pytest.mark.slow
def test_measurements_of_a_worker_arrive_bit_for_bit(tmp_path: Path) -> None:
    sent: list[str] = []
    request = CalibrationRequest(backend=small_backend(tmp_path), dtype=DType.FLOAT32, rows=300, seed=3)
    ((_, found),) = measure_apart([request], jobs=1, seconds=None, tell=sent.append)
    assert isinstance(found, Measured)
    assert sent[-1].endswith("fitting")
    assert sent[-2].endswith("300 of 300 rows")
    assert found.fit.rows >= 300
    assert found.fitted.largest == found.fit.margins
    for tier, seen in found.fit.seen.items():
        assert (quantiles(found.theory.rows[tier]), quantiles(found.fitted.rows[tier])) == (seen.theory, seen.fitted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("raise RuntimeError('broken')", "fails on a drawn case, Raised: RuntimeError: broken"),
        ("os.abort()", "killed by SIGABRT"),
    ],
)
def test_a_backend_that_raises_or_dies_in_its_worker_is_refused(tmp_path: Path, first: str, words: str) -> None:
    request = CalibrationRequest(backend=small_backend(tmp_path, first), dtype=DType.FLOAT32, rows=300, seed=3)
    ((_, none),) = measure_apart([request], jobs=1, seconds=None, tell=lambda _: None)
    assert isinstance(none, NoCalibration)
    assert words in none.reason


@pytest.mark.slow
def test_a_calibration_that_gets_no_time_is_given_up() -> None:
    request = CalibrationRequest(backend="torch_sdpa", dtype=DType.FLOAT32, rows=300, seed=3)
    ((_, none),) = measure_apart([request], jobs=1, seconds=0.0, tell=lambda _: None)
    assert isinstance(none, NoCalibration)
    assert "--time" in none.reason
