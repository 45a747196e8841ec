"""Fits to what a real kernel computes on drawn cases."""

import pytest

from attnfuzz.harness.calibrate import sample
from attnfuzz.harness.calibrate.calibrate import measure
from attnfuzz.harness.calibrate.fit import PARAMETERS
from attnfuzz.harness.calibrate.sample import CannotCalibrate
from attnfuzz.kernels.torch_sdpa import SdpaBackend
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel, Origin


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few cases, and leave out the long ones: they take most of the time."""
    monkeypatch.setattr(sample, "_EXAMPLES_AT_ONCE", 10)
    monkeypatch.setattr(sample, "long_cases", lambda *_: ())


def test_a_fit_tightens_and_holds_for_the_rows_held_out() -> None:
    found = measure("trtllm_mha", DType.FLOAT32, rows=2000, seed=1, tell=lambda _: None).fit
    assert found.rows >= 2000
    assert found.noise.origin is Origin.CALIBRATED
    assert found.fitted
    assert all(getattr(found.noise, name) <= getattr(found.theory, name) for name in PARAMETERS)
    assert max(found.margins.values()) <= 1


def test_the_same_seed_gives_the_same_fit() -> None:
    first, second = (measure("torch_sdpa", DType.FLOAT32, rows=1000, seed=3, tell=lambda _: None) for _ in range(2))
    assert first.fit == second.fit


def test_errors_above_the_theory_are_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = NoiseModel(probabilities=1e-12, logits=1e-12, accumulate=1e-12, exponential=1e-12)
    monkeypatch.setattr(SdpaBackend, "theory", lambda *_: tight)
    with pytest.raises(CannotCalibrate, match="fuzz it first"):
        measure("torch_sdpa", DType.BFLOAT16, rows=1000, seed=1, tell=lambda _: None)


def test_a_backend_that_raises_cannot_be_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(SdpaBackend, "open", broken)
    with pytest.raises(CannotCalibrate, match="broken"):
        measure("torch_sdpa", DType.FLOAT32, rows=1000, seed=1, tell=lambda _: None)
