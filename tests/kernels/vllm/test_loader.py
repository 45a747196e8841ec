"""A release of vLLM imported without a server."""

import functools
from pathlib import Path

import fake_vllm
import pytest

from attnfuzz.kernels.releases.errors import Moved, ReleaseError
from attnfuzz.kernels.releases.release import Release, release_of
from attnfuzz.kernels.vllm.loader import load
from attnfuzz.kernels.vllm.project import VLLM


def test_the_backend_is_imported_once_on_a_claimed_gpu_and_the_package_never_begins_a_server(release: Release) -> None:
    loaded = load(release)
    assert loaded.module("vllm.platforms").current_platform.get_device_capability() == (10, 0)
    assert load(release).backend is loaded.backend


def test_a_process_has_one_release(release: Release, tmp_path: Path) -> None:
    load(release)
    other = release_of(VLLM, f"vllm@{fake_vllm.copy_tree(tmp_path / 'other')}")
    with pytest.raises(ReleaseError, match="needs another process"):
        load(other)


def test_a_class_that_has_moved_is_named(tree: Path, release: Release) -> None:
    fake_vllm.edit(tree, "class FlashInferImpl:", "class FlashInferLayer:")
    with pytest.raises(Moved, match=r"has no FlashInferImpl in vllm\.v1\.attention\.backends\.flashinfer"):
        load(release)


def test_a_tree_that_does_not_import_says_which_line_fails(tree: Path, release: Release) -> None:
    fake_vllm.edit(tree, "trtllm_workspace_buffer = None\n\n\ndef", "import a_package_of_next_year\n\n\ndef")
    with pytest.raises(ReleaseError, match=r"needs a_package_of_next_year .*pip install 'attnfuzz\[vllm\]'"):
        load(release)


def test_a_kind_that_a_release_lacks_is_named_and_the_others_load(release: Release) -> None:
    with pytest.raises(Moved, match=r"no module vllm\.v1\.attention\.backends\.triton_attn"):
        load(release, "triton")
    assert load(release).part("Impl").__name__ == "FlashInferImpl"


def test_claiming_another_gpu_clears_cached_properties_of_the_last_one(release: Release) -> None:
    loaded = load(release)
    backend, gpu = loaded.backend, loaded.module("vllm.platforms").current_platform
    backend.major = functools.cache(lambda: gpu.get_device_capability().major)
    assert backend.major() == 10
    gpu.become((9, 0))
    assert backend.major() == 9
