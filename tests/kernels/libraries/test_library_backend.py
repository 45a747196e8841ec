"""Backends of libraries: what is missing, how they are named together, and the model of their error."""

import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.version import Version

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import LIBRARIES
from attnfuzz.harness.backends.registry import NoLibrary, with_libraries
from attnfuzz.kernels.libraries import installed
from attnfuzz.kernels.libraries.catalogue import LIBRARY_BACKENDS
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.reference import calibration
from attnfuzz.reference.calibration import Calibration, Fit
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
        ({"packages": {"torch": "99"}}, f"torch {version('torch')} is older than 99: pip install 'torch>=99'"),
        ({"why_not": lambda: "this CPU has no AVX-512"}, "this CPU has no AVX-512"),
    ],
)
def test_a_missing_package_is_reported_with_a_remedy(fields: dict[str, Any], reason: str | None) -> None:
    assert library(**fields).missing() == reason


def test_a_dtype_may_have_a_noise_model_of_its_own() -> None:
    exact = NoiseModel.fp32_arithmetic()
    backend = library(noise_models={DType.FLOAT32: exact})
    assert backend.noise(DType.FLOAT32) == exact
    assert backend.noise(DType.BFLOAT16) == NoiseModel.unknown_kernel()


def test_a_calibration_holds_for_the_versions_that_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(NoiseModel.fp32_arithmetic(), logits=2.0**-22)
    monkeypatch.setattr(calibration, "SHIPPED", tmp_path)
    backend, theory = library("lib:op", packages={"msgspec": "0.1"}), library().noise(DType.FLOAT32)
    here = backend.versions()
    assert here == {"msgspec": version("msgspec")}
    for label, versions, expected in (
        ("lib:same", here, measured),
        ("lib:other", {"msgspec": "0.1"}, theory),
        ("lib:unsaid", {}, theory),
    ):
        fit = Fit(rows=1, longest=1, noise=measured, theory=theory, fitted=(), seen={}, margins={})
        saved = Calibration(
            backend=label,
            architecture=calibration.architecture(),
            date="2026-01-01",
            command="",
            seed=1,
            versions={"torch": "2", **versions},
            dtypes={DType.FLOAT32: fit},
        )
        calibration.save(tmp_path / calibration.file_name(label, saved.architecture), saved)
        assert library(label, packages=backend.packages).noise(DType.FLOAT32) == expected


def test_kernels_of_torch_have_its_release_whatever_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", lambda _: "2.13.0+cpu")
    assert library().versions() == {"torch": "2.13.0"}


def test_extras_install_the_packages_of_backends() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    named = {
        (extra, each.name): each.specifier
        for extra, lines in project["optional-dependencies"].items()
        for each in map(Requirement, lines)
    }
    for backend in LIBRARY_BACKENDS:
        own = {backend.extra, *backend.alone} & project["optional-dependencies"].keys()
        assert own or backend.packages.keys() <= {"torch"}, backend.name
        # jaxlib comes with jax, and sglang is installed by itself.
        wanted = {
            package: named[extra, package] for extra in own for package in backend.packages if (extra, package) in named
        }
        assert wanted.keys() >= backend.packages.keys() - {"torch", "jaxlib", "sglang"}, backend.name
        assert all(Version(backend.packages[package]) in wanted[package] for package in wanted), backend.name


def test_variants_have_one_kernel_so_that_a_failure_of_both_can_have_one_cause() -> None:
    assert library("lib:op").kernel == library("lib:op_split", variant_of="lib:op").kernel == "lib_op"
    kernels = {each.name: each.kernel for each in LIBRARY_BACKENDS if isinstance(each, LibraryBackend)}
    assert set(kernels.values()) <= {name.replace(":", "_") for name in kernels}


def test_one_name_stands_for_all_installed_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (library("a:one"), library("b:two", packages={"no-such-lib": "1"}), library("a:three"))
    monkeypatch.setattr(registry, "shipped", lambda _: {LIBRARIES: lambda: found})
    assert with_libraries(["torch_sdpa", "libraries", "a:one"]) == ("torch_sdpa", "a:one", "a:three")
    assert with_libraries(["torch_sdpa"]) == ("torch_sdpa",)


def test_no_library_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "shipped", lambda _: {LIBRARIES: tuple})
    with pytest.raises(NoLibrary, match="attnfuzz backends"):
        with_libraries(["libraries"])
