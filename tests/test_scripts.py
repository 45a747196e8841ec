"""Scripts that maintain the repository's data."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from attnfuzz.reference.calibration import SHIPPED, load, save
from attnfuzz.reference.dtypes import DType


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_calibrations_much_tighter_than_theory_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipping = script("ship_calibrations")
    calibration = load(SHIPPED / "trtllm_mha-x86_64-AVX512.json")
    loose = {dtype: replace(fit, noise=fit.theory) for dtype, fit in calibration.dtypes.items()}
    half = {**loose, DType.FLOAT32: replace(loose[DType.FLOAT32], noise=calibration.dtypes[DType.FLOAT32].noise)}
    save(tmp_path / "fits" / "loose.json", replace(calibration, dtypes=loose))
    save(tmp_path / "fits" / "half.json", replace(calibration, dtypes=half))
    monkeypatch.setattr(shipping, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr("sys.argv", ["ship_calibrations.py", str(tmp_path / "fits")])
    shipping.main()
    assert [path.name for path in (tmp_path / "shipped").iterdir()] == ["half.json"]
    assert list(load(tmp_path / "shipped" / "half.json").dtypes) == [DType.FLOAT32]
