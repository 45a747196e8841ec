"""Scripts that maintain the repository's data."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

import attnfuzz
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


CHANGES = """# Changelog

## [Unreleased]
### Added
- One.
  Of two lines.
### Fixed
- **Breaking:** Two: write it otherwise.

"""
RELEASED = """## [0.1.0] - 2026-01-01
### Added
#### Kernels
- Three.

## [0.0.1] - 2025-01-01
The first.
"""


def test_changes_of_a_release_move_into_its_section() -> None:
    changelog = script("changelog")
    new = "## [0.2.0] - 2026-02-02\n### Breaking changes, and how to go on\n- Two: write it otherwise.\n\n"
    new += "### Added\n- One.\n  Of two lines.\n\n"
    released = changelog.cut(CHANGES + RELEASED, "0.2.0", "2026-02-02")
    assert released == "# Changelog\n\n## [Unreleased]\n\n" + new + RELEASED
    assert changelog.cut(released, "0.2.0", "2026-02-03") == released


def test_a_section_whose_tag_is_not_made_gets_later_changes_first() -> None:
    released = script("changelog").cut(CHANGES + RELEASED, "0.1.0", "2026-02-02")
    assert "## [0.1.0] - 2026-02-02\n" in released
    assert "### Added\n- One.\n  Of two lines.\n#### Kernels\n- Three.\n\n## [0.0.1]" in released


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# Changelog\n" + RELEASED, "Unreleased"),
        (CHANGES.replace("### Fixed", "### Fixes"), "'Fixes' is none of"),
        (CHANGES.replace("### Added\n", ""), "'- One.' is under no heading"),
        ("## [Unreleased]\n\n" + RELEASED, "no change under Unreleased"),
    ],
)
def test_a_changelog_that_cannot_be_released_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        script("changelog").cut(text, "0.2.0", "2026-02-02")


def test_the_changelog_can_be_released() -> None:
    text = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    released = script("changelog").cut(text, attnfuzz.__version__, "2026-02-02")
    assert released.count("\n- ") == text.count("\n- ")
