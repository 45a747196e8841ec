"""Regressions planted in FlashInfer's CUDA sources: each applies to the installed release, exactly once."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from attnfuzz.kernels.gpu.build_record import installed

ROOT = Path(__file__).parents[1]
PLANTS = ROOT / "benchmarks" / "cuda_regressions"

cuda_plants: Any = runpy.run_path(str(ROOT / "benchmarks" / "cuda_plants.py"))
Plant, BadPlant = cuda_plants["Plant"], cuda_plants["BadPlant"]

of_known_releases = pytest.mark.skipif(
    str(installed()) not in cuda_plants["RELEASES"],
    reason=f"the plants change the sources of FlashInfer {' and '.join(cuda_plants['RELEASES'])}",
)

TEXT = """\
area = "decode"
kind = "a mask that begins one late"
change = "The last key is masked."
source = "data/include/some.cuh"
backend = "batch_decode"
anchor = "void second("
before = "kv_idx < kv_len"
after = "kv_idx + 1 < kv_len"

[units]
"batch decode bfloat16, head dim 64" = ["batch_decode.cu"]
"""
SOURCE = "void first() { kv_idx < kv_len; }\nvoid second() { kv_idx < kv_len; }\nvoid third() { kv_idx < kv_len; }\n"


@pytest.fixture
def plant(tmp_path: Path) -> Any:
    path = tmp_path / "one_key_short.toml"
    path.write_text(TEXT)
    return Plant.read(path)


def test_the_first_text_after_the_anchor_is_replaced(plant: Any) -> None:
    first, second, third = plant.planted(SOURCE).splitlines()
    assert second == "void second() { kv_idx + 1 < kv_len; }"
    assert (first, third) == (SOURCE.splitlines()[0], SOURCE.splitlines()[2])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (SOURCE.replace("second", "other"), "its anchor occurs 0 times in data/include/some.cuh"),
        (SOURCE + SOURCE, "its anchor occurs 2 times"),
        (SOURCE.replace("kv_idx < kv_len", "true"), "lacks its text after the anchor"),
    ],
)
def test_a_plant_that_does_not_apply_is_refused_in_one_line(plant: Any, source: str, reason: str) -> None:
    with pytest.raises(BadPlant, match=f"^one_key_short does not apply: .*{reason}[^\n]*$"):
        plant.planted(source)


@pytest.mark.parametrize("text", ["", "area = ", TEXT.replace("kind", "sort")])
def test_a_file_that_is_no_plant_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(text)
    with pytest.raises(BadPlant, match=r"^plant.toml is no plant: [^\n]*$"):
        Plant.read(path)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(BadPlant, match="no plant is named nothing"):
        cuda_plants["read_plants"](["nothing"])


@of_known_releases
@pytest.mark.parametrize("path", sorted(PLANTS.glob("*.toml")), ids=lambda path: path.stem)
def test_each_plant_changes_the_installed_sources_of_its_modules(path: Path) -> None:
    plant = Plant.read(path)
    text = (cuda_plants["package"]() / plant.source).read_text()
    assert plant.planted(text) != text
    assert plant.units.keys() <= {module.name for module in cuda_plants["modules_for"](plant)}


@pytest.mark.parametrize("includes", [True, False])
def test_a_file_that_is_compiled_without_the_changed_header_is_refused(tmp_path: Path, includes: bool) -> None:
    made, changed = tmp_path / "kernel.cu.o", tmp_path / "tree" / "page.cuh"
    read = changed if includes else "/installed/page.cuh"
    command = f"cd {tmp_path}; echo > kernel.cu.partial; echo 'kernel.cu.o: {read}' > kernel.cu.partial.d"
    reason = cuda_plants["Unit"](command, made, changed).compile()
    assert reason == ("" if includes else "kernel.cu.o does not include the changed page.cuh")
    assert made.exists() is includes


def test_plants_of_each_area_are_there() -> None:
    plants = cuda_plants["read_plants"]()
    kernels = {"decode", "paged prefill", "ragged prefill", "MLA", "merges"}
    around = {"scheduler", "page tables", "sinks", "caps", "windows"}
    assert {plant.area for plant in plants} == kernels | around
    assert len(plants) >= 28
