"""The versions that a measurement depends on, and the features that the backends lack here."""

from collections.abc import Iterator, Sequence

from packaging.version import Version

from attnfuzz.harness.backends.registry import builtin, fixed
from attnfuzz.harness.doctor.measurement import Measurement, information, not_measured
from attnfuzz.harness.findings.environment import environment, version_of
from attnfuzz.kernels.building.bounded_command import TooSlow, output_of
from attnfuzz.kernels.building.library_cache import NoCompiler
from attnfuzz.kernels.cuda import toolkit, visible
from attnfuzz.kernels.interface.backend import package_of

TESTED = {"flashinfer-python": ("0.7.2.post1", "0.7.4")}
"""The releases of packages that `make matrix` tests (scripts/versions.sh), the oldest first."""

_SECONDS = 10.0
_DISTRIBUTIONS = {"cudnn": "nvidia-cudnn-frontend"}
"""Distributions of packages that are imported under another name."""
_BELOW = ("triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "cuda-bindings", "apache-tvm-ffi")
"""Distributions below these packages."""
_WITHOUT_GPU = ", which this machine lacks: "
"""The words between a need and its reason, if no GPU is visible (`visible.missing`)."""
_NAMED = 3
"""Number of backends that a row names."""


def versions() -> Iterator[Measurement]:
    """Yield a row for each component."""
    for name, text in environment().items():
        yield information(name, text + _untested(name, text))
    yield _nvcc()
    for gpu in visible.visible():
        arch = gpu.capability.replace(".", "")
        yield information(f"GPU {gpu.index}", f"{gpu.name}, SM{arch}, {gpu.memory / (1 << 30):.0f} GiB")
    if found := _libraries():
        yield information("libraries", ", ".join(f"{package} {version}" for package, version in found.items()))


def _untested(package: str, version: str) -> str:
    """Return the words on a release that is older or newer than those that `make matrix` tests, or ""."""
    tested = TESTED.get(package)
    if tested is None or Version(tested[0]) <= Version(version) <= Version(tested[-1]):
        return ""
    than = "older" if Version(version) < Version(tested[0]) else "newer"
    return (
        f", {than} than those tested ({' and '.join(tested)}): calls are bound to its own signatures, and one with an "
        "argument that it lacks or has renamed is unsupported, with the argument's name"
    )


def _nvcc() -> Measurement:
    try:
        command = toolkit.nvcc()
        lines = (output_of([str(command), "--version"], seconds=_SECONDS) or "").strip().splitlines()
    except NoCompiler as reason:
        return not_measured("nvcc", str(reason))
    except TooSlow:
        return not_measured("nvcc", f"nvcc --version takes more than {_SECONDS:g} s")
    release = next((line for line in lines if "release" in line), None)
    return information("nvcc", release) if release else not_measured("nvcc", f"{command} --version names no release")


def _libraries() -> dict[str, str]:
    """Return the versions of the installed packages that have kernels."""
    packages = sorted({package_of(backend) for backend in builtin().values()} - {"", "torch", "flashinfer"})
    named = dict.fromkeys([*(_DISTRIBUTIONS.get(each, each) for each in packages), *_BELOW])
    return {name: version for name in named if (version := version_of(name)) is not None}


def lacking() -> Iterator[Measurement]:
    """Yield how many backends run here, and for each reason those that do not. Revisions are not counted."""
    own = {name: backend for name, backend in builtin().items() if name == fixed(name)}
    why_not: dict[str, list[str]] = {}
    for name, backend in own.items():
        if (reason := backend.missing()) is not None:
            # Without a GPU, its architecture is no further reason.
            needs, without_gpu, why = reason.partition(_WITHOUT_GPU)
            why_not.setdefault(f"needs a GPU: {why}" if without_gpu else needs, []).append(name)
    lacks = sum(map(len, why_not.values()))
    yield information("backends", f"{len(own) - lacks} of {len(own)} run here")
    for reason, names in sorted(why_not.items(), key=lambda each: -len(each[1])):
        yield information(f"  {len(names)} lacking", f"{reason} ({', '.join(names[:_NAMED])}{_more(names)})")


def _more(names: Sequence[str]) -> str:
    return ", ..." if len(names) > _NAMED else ""
