"""Calibrations: noise models that were measured on correct kernels, as JSON files that say how.

Those in `calibrations/` ship with the project. A calibration holds for the architecture that it was measured on, and
for no other. `attnfuzz calibrate` makes them.
"""

import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import torch

from attnfuzz.reference import foreign
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.user_error import UserError

FORMAT = "attnfuzz-calibration"
VERSION = 1

_LONGEST_IN_A_FILE_NAME = 100
"""Characters of a backend's name: a file name has at most 255 bytes."""

_SHIPPED = Path(__file__).parent / "calibrations"


class CalibrationError(UserError):
    """A file that holds no calibration; the message is one line that says what is wrong and what to do."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """How something is distributed over rows."""

    median: float
    p99: float
    p999: float
    largest: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier saw of rows that the fit did not see: under the theoretical model, and under the fitted one."""

    theory: Quantiles
    fitted: Quantiles


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The noise model for queries of one dtype, and what it rests on.

    `rows` counts (token, head) rows, of which half were fitted and half held out; `longest` is the largest kv_len among
    them. `fitted` names the parameters that the rows could tell; the others are as in `theory`. `seen` has, of the rows
    held out, the distribution of T1's margin, of T2's z^2, and of T4's margin, by the names of the tiers. `margins` are
    the largest margins of the tiers there, with the fitted model.
    """

    rows: int
    longest: int
    noise: NoiseModel
    theory: NoiseModel
    fitted: tuple[str, ...]
    seen: Mapping[str, Seen]
    margins: Mapping[str, float]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What `attnfuzz calibrate` measured of one backend, by dtype of the queries."""

    backend: str
    architecture: str
    date: str
    command: str
    seed: int
    versions: Mapping[str, str]
    dtypes: Mapping[DType, Fit]

    def noise(self, dtype: DType, on: str | None = None) -> NoiseModel | None:
        """The measured model for `dtype` on an architecture, this machine's if none is given; None if there is none."""
        fit = self.dtypes.get(dtype)
        return fit.noise if fit is not None and self.architecture == (on or architecture()) else None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    calibration: Calibration


@cache
def architecture() -> str:
    """The machine and the widest vectors that torch uses on it, like x86_64-AVX512."""
    return f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}"


@cache
def _shipped(backend: str, on: str) -> Calibration | None:
    path = _SHIPPED / file_name(backend, on)
    return load(path) if path.exists() else None


def shipped_noise(backend: str, dtype: DType, theory: NoiseModel, on: str | None = None) -> NoiseModel:
    """The calibrated model of `backend` for `dtype` that ships for the architecture `on`, else `theory`.

    Revisions and defects share it. `on` is this machine's if it is not given; backends on GPUs give theirs.
    """
    calibration = _shipped(re.split("[@+]", backend, maxsplit=1)[0], on or architecture())
    return (calibration.noise(dtype, on) if calibration is not None else None) or theory


def file_name(backend: str, on: str) -> str:
    """The name of the file for `backend` on an architecture."""
    safe = re.sub(r"[^-.@+A-Za-z0-9_]+", "_", Path(backend).name)
    return f"{safe[-_LONGEST_IN_A_FILE_NAME:]}-{on}.json"


def save(path: Path, calibration: Calibration) -> None:
    """Write a calibration, readable for people. OSError if the file can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.encode(_File(calibration=calibration))
    path.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def load(path: Path) -> Calibration:
    """Read what `save` wrote.

    Raises:
        CalibrationError: the file is missing, damaged, foreign, or of another version.

    """
    try:
        content = foreign.decode_json(foreign.read_bytes(path))
    except OSError as error:
        raise CalibrationError(f"calibration {path}: {error.strerror}; attnfuzz calibrate -o makes one") from error
    except msgspec.DecodeError as error:
        raise CalibrationError(f"calibration {path} is not JSON ({error}): calibrate again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CalibrationError(f'{path} is no calibration: it must be a JSON object with "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise CalibrationError(
            f"calibration {path} has version {repr(content.get('version'))[:40]}, and this attnfuzz reads version "
            f"{VERSION}: calibrate again"
        )
    try:
        return msgspec.convert(content, _File).calibration
    except msgspec.ValidationError as error:
        raise CalibrationError(f"calibration {path} is damaged: {foreign.reason(error)}; calibrate again") from error
