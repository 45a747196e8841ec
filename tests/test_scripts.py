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
    loose = {
        dtype: replace(fit, seen={tier: replace(seen, fitted=seen.theory) for tier, seen in fit.seen.items()})
        for dtype, fit in calibration.dtypes.items()
    }
    fit = calibration.dtypes[DType.FLOAT32]
    t1 = fit.seen["T1"]
    far = replace(t1, theory=replace(t1.theory, largest=t1.fitted.largest / shipping.FACTOR))
    tight = replace(fit, seen={**fit.seen, "T1": far})
    save(tmp_path / "fits" / "loose.json", replace(calibration, dtypes=loose))
    save(tmp_path / "fits" / "one.json", replace(calibration, dtypes={**loose, DType.FLOAT32: tight}))
    few = {DType.FLOAT32: replace(tight, rows=shipping.ROWS - 1)}
    save(tmp_path / "fits" / "few.json", replace(calibration, dtypes=few))
    monkeypatch.setattr(shipping, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr("sys.argv", ["ship_calibrations.py", str(tmp_path / "fits")])
    shipping.main()
    assert [path.name for path in (tmp_path / "shipped").iterdir()] == ["one.json"]
    assert list(load(tmp_path / "shipped" / "one.json").dtypes) == [DType.FLOAT32]
