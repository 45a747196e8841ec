"""What a release's backend says of itself, without the release."""

from pathlib import Path

import pytest
from packaging.version import Version

from attnfuzz.kernels.native import build
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.sglang import backends
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.kinds import capability_of
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType


def test_a_backend_is_named_as_it_was_asked_for() -> None:
    assert ENGINE.backend_of(Named.parse(SGLANG, "sglang==0.5.9:trtllm_mla")).name == "sglang==0.5.9:trtllm_mla"


def test_its_modes_are_those_that_the_versions_workers_have_an_order_for() -> None:
    assert set(capability_of("trtllm_mha", Version("0.5.9")).modes) == set(Mode.of_kernels())
    assert Mode.DRAFT_EXTEND not in capability_of("trtllm_mha", Version("0.5.14")).modes


def test_its_page_sizes_are_those_that_a_servers_arguments_keep() -> None:
    assert capability_of("trtllm_mha", Version("0.5.14")).page_sizes == (16, 32, 64)
    assert capability_of("trtllm_mha", Version("0.5.23")).page_sizes == (16, 32, 64, 128)
    assert capability_of("trtllm_mla", Version("0.5.23")).page_sizes == (32, 64)


def test_latent_attention_is_in_bfloat16_alone() -> None:
    assert capability_of("trtllm_mla", Version("0.5.9")).dtypes == (DType.BFLOAT16,)


def test_no_request_has_fewer_keys_than_queries() -> None:
    can = capability_of("trtllm_mha", Version("0.5.9"))
    assert not can.empty_kv
    assert not can.kv_shorter_than_q


def test_a_missing_package_is_reported_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "NEEDS", ("no_such_package", "torch"))
    missing = ENGINE.backend_of(Named.parse(SGLANG, "sglang==0.5.9:trtllm_mha")).missing()
    assert missing == "needs no_such_package: pip install 'attnfuzz[sglang]'"


def test_with_all_packages_only_the_native_kernels_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "NEEDS", ())
    monkeypatch.setattr(build, "missing", lambda: "no compiler")
    assert ENGINE.backend_of(Named.parse(SGLANG, "sglang==0.5.9:trtllm_mha")).missing() == "no compiler"


def test_a_folder_without_a_source_of_sglang_is_no_backend(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError):
        ENGINE.backend_of(Named.parse(SGLANG, f"sglang@{tmp_path}:trtllm_mha"))
