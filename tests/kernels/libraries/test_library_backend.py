"""Backends of libraries: what is missing, how they are named together, and the model of their error."""

from typing import Any

import pytest
import torch

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.registry import NoLibrary, with_libraries
from attnfuzz.kernels.libraries.catalogue import LIBRARY_BACKENDS
from attnfuzz.kernels.libraries.library_backend import LibraryBackend
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


def attend(*, out: torch.Tensor, **_: Any) -> None:
    out.zero_()


def library(label: str = "lib:op", **fields: Any) -> LibraryBackend:
    return LibraryBackend(attend, label=label, **fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"packages": {"torch": "2.0"}}, None),
        (
            {"packages": {"no-such-lib": "1"}, "extra": "lib"},
            "no-such-lib is not installed: pip install 'attnfuzz[lib]'",
        ),
        ({"packages": {"torch": "99"}}, f"torch {torch.__version__} is older than 99: pip install 'torch>=99'"),
        ({"why_not": lambda: "this CPU has no AVX-512"}, "this CPU has no AVX-512"),
    ],
)
def test_what_is_missing_comes_with_a_remedy(fields: dict[str, Any], reason: str | None) -> None:
    assert library(**fields).missing() == reason


def test_a_dtype_may_have_a_noise_model_of_its_own() -> None:
    exact = NoiseModel.fp32_arithmetic()
    backend = library(noise_models={DType.FLOAT32: exact})
    assert backend.noise(DType.FLOAT32) == exact
    assert backend.noise(DType.BFLOAT16) == NoiseModel.unknown_kernel()


def test_variants_have_one_kernel_so_that_a_failure_of_both_can_have_one_cause() -> None:
    assert library("lib:op").kernel == library("lib:op_split", variant_of="lib:op").kernel == "lib_op"
    kernels = {each.name: each.kernel for each in LIBRARY_BACKENDS if isinstance(each, LibraryBackend)}
    assert set(kernels.values()) <= {name.replace(":", "_") for name in kernels}


def test_one_name_stands_for_all_installed_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (library("a:one"), library("b:two", packages={"no-such-lib": "1"}), library("a:three"))
    monkeypatch.setattr(registry, "LIBRARY_BACKENDS", found)
    assert with_libraries(["torch_sdpa", "libraries", "a:one"]) == ("torch_sdpa", "a:one", "a:three")
    assert with_libraries(["torch_sdpa"]) == ("torch_sdpa",)


def test_no_library_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LIBRARY_BACKENDS", ())
    with pytest.raises(NoLibrary, match="attnfuzz backends"):
        with_libraries(["libraries"])
