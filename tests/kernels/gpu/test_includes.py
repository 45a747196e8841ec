"""The modules that include a file are found by reading #include lines of a tree like FlashInfer's."""

from pathlib import Path

import pytest

from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.includes import including

TREE = {
    "data/include/flashinfer/prefill.cuh": '#include "mask.cuh"\n# include <flashinfer/cp_async.cuh>\n#include <a.h>',
    "data/include/flashinfer/decode.cuh": "#pragma once\n#include <flashinfer/cp_async.cuh>",
    "data/include/flashinfer/mask.cuh": '#include "prefill.cuh"',
    "data/include/flashinfer/cp_async.cuh": "// #include <flashinfer/unused.cuh>",
    "data/include/flashinfer/unused.cuh": "",
    "data/csrc/tvm_ffi_utils.h": "",
    "generated/prefill/batch_prefill.cu": '#include "config.inc"\n#include <flashinfer/prefill.cuh>',
    "generated/prefill/config.inc": "#include <tvm_ffi_utils.h>",
    "generated/decode/batch_decode.cu": "#include <flashinfer/decode.cuh>",
}


@pytest.fixture
def named(tmp_path: Path) -> dict[str, list[str]]:
    """The modules that include each file of the tree, by the file's path in it; and those of other names."""
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    modules = [Module(name, lambda: None) for name in ("prefill", "decode")]
    folders = [tmp_path / "data/include", tmp_path / "data/csrc"]
    others = ["/home/me/flashinfer/include/flashinfer/decode.cuh", "flashinfer/mask.cuh", "mask.cu", "/other/mask.cuh"]
    files = {name: str(tmp_path / name) for name in TREE} | {name: name for name in others}
    found = including(
        lambda module: (tmp_path / "generated" / module.name).glob("*.cu"), modules, list(files.values()), folders
    )
    return {name: found[file] for name, file in files.items()}


def test_files_are_found_through_others_and_in_circles(named: dict[str, list[str]]) -> None:
    assert named["data/include/flashinfer/cp_async.cuh"] == ["prefill", "decode"]
    assert named["data/include/flashinfer/mask.cuh"] == ["prefill"]
    assert named["data/include/flashinfer/decode.cuh"] == ["decode"]
    assert named["data/include/flashinfer/unused.cuh"] == []


def test_generated_sources_and_files_beside_them_count(named: dict[str, list[str]]) -> None:
    assert named["generated/prefill/batch_prefill.cu"] == ["prefill"]
    assert named["generated/prefill/config.inc"] == ["prefill"]
    assert named["data/csrc/tvm_ffi_utils.h"] == ["prefill"]


def test_a_file_of_a_checkout_and_the_end_of_a_path_name_the_installed_file(named: dict[str, list[str]]) -> None:
    assert named["/home/me/flashinfer/include/flashinfer/decode.cuh"] == ["decode"]
    assert named["flashinfer/mask.cuh"] == ["prefill"]
    assert named["mask.cu"] == []
    assert named["/other/mask.cuh"] == []
