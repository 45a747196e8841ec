"""Calibrations: noise models measured on correct kernels, in JSON files that record how they were measured.

Those in `calibrations/` ship with the project; `attnfuzz calibrate` makes them. A calibration is only valid for the
architecture, and for a library's kernel the version of the library, on which it was measured.
"""

import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec
import torch

from attnfuzz.reference import foreign
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.user_error import UserError

FORMAT = "attnfuzz-calibration"
VERSION = 1

_LONGEST_IN_A_FILE_NAME = 100
"""Maximum number of characters of a backend's name in a file name, which has at most 255 bytes."""

SHIPPED = Path(__file__).parent / "calibrations"
"""The folder of the calibrations and margins that ship with the project."""


class CalibrationError(UserError):
    """A file that is not a valid calibration. The message is one line with the problem and its remedy."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a distribution over rows."""

    median: float
    p999: float
    largest: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a tier over held-out rows, under the theoretical and the fitted model."""

    theory: Quantiles
    fitted: Quantiles


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The noise model for queries of one dtype, and the data behind it.

    `rows` counts (token, head) rows: half are fitted, half are held out. `longest` is their largest kv_len. `fitted`
    names the parameters that the rows determine; the others are as in `theory`. `seen` maps tiers to distributions over
    the held-out rows: T1's margin, T2's z^2 and T4's margin. `margins` are the tiers' largest margins on these rows,
    with the fitted model.
    """

    rows: int
    longest: int
    noise: NoiseModel
    theory: NoiseModel
    fitted: tuple[str, ...]
    seen: Mapping[str, Seen]
    margins: Mapping[str, float]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one backend by `attnfuzz calibrate`, by dtype of the queries."""

    backend: str
    architecture: str
    date: str
    command: str
    seed: int
    versions: Mapping[str, str]
    dtypes: Mapping[DType, Fit]

    def noise(
        self, dtype: DType, on: str | None = None, libraries: Mapping[str, str] = MappingProxyType({})
    ) -> NoiseModel | None:
        """Return the model for `dtype` on an architecture (default: this machine's), or None if not measured there.

        `libraries` are the package versions that the measurement must have used.
        """
        fit = self.dtypes.get(dtype)
        measured = self.architecture == (on or architecture()) and libraries.items() <= self.versions.items()
        return fit.noise if fit is not None and measured else None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    calibration: Calibration


@cache
def architecture() -> str:
    """Return the machine and the widest vector instructions that torch uses on it, such as x86_64-AVX512."""
    return f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}"


@cache
def _shipped(backend: str, on: str) -> Calibration | None:
    path = SHIPPED / file_name(backend, on)
    return load(path) if path.exists() else None


def shipped_noise(
    backend: str,
    dtype: DType,
    theory: NoiseModel,
    on: str | None = None,
    libraries: Mapping[str, str] = MappingProxyType({}),
) -> NoiseModel:
    """Return the shipped model of `backend` for `dtype` on the architecture `on` (default: this machine), or `theory`.

    Revisions and defects of a backend share its model. A model measured with other versions of `libraries` is ignored.
    """
    calibration = _shipped(re.split("[@+]", backend, maxsplit=1)[0], on or architecture())
    return (calibration.noise(dtype, on, libraries) if calibration is not None else None) or theory


def file_name(backend: str, on: str) -> str:
    """Return the file name of the calibration of `backend` on an architecture."""
    safe = re.sub(r"[^-.@+A-Za-z0-9_]+", "_", Path(backend).name)
    return f"{safe[-_LONGEST_IN_A_FILE_NAME:]}-{on}.json"


def save(path: Path, calibration: Calibration) -> None:
    """Write a calibration as indented JSON. Raises OSError if the file can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.encode(_File(calibration=calibration))
    path.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def load(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        CalibrationError: the file is missing, damaged, not a calibration, or of another version.
    """
    try:
        content = foreign.decode_json(foreign.read_bytes(path))
    except OSError as error:
        raise CalibrationError(f"calibration {path}: {error.strerror}; attnfuzz calibrate -o makes one") from error
    except msgspec.DecodeError as error:
        raise CalibrationError(f"calibration {path} is not JSON ({error}): calibrate again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CalibrationError(f'{path} is not a calibration: it must be a JSON object with "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise CalibrationError(
            f"calibration {path} has version {repr(content.get('version'))[:40]}, and this attnfuzz reads version "
            f"{VERSION}: calibrate again"
        )
    try:
        return msgspec.convert(content, _File).calibration
    except msgspec.ValidationError as error:
        raise CalibrationError(f"calibration {path} is damaged: {foreign.reason(error)}; calibrate again") from error
