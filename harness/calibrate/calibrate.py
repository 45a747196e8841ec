"""Calibrates a backend: one fit per dtype of queries, tested on held-out rows."""

import platform
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

import msgspec
import torch

import attnfuzz
from attnfuzz.harness.backends.measured import architecture_of, versions_of
from attnfuzz.harness.backends.registry import load, resolve
from attnfuzz.harness.calibrate.fit import fit
from attnfuzz.harness.calibrate.margins import Spread, largest_margins, quantiles, spread
from attnfuzz.harness.calibrate.sample import CannotCalibrate, Sample, draw_samples, rows_of
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.reference.calibration import Calibration, Fit, Seen
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


@runtime_checkable
class HasTheory(Protocol):
    """A backend whose `noise` may be calibrated, with its theoretical model."""

    def theory(self, dtype: DType) -> NoiseModel:
        """Return the theoretical noise model."""
        ...


class Measured(msgspec.Struct, frozen=True, tag=True):
    """The fit for one dtype, and the tiers' results on held-out rows under the theoretical and the fitted model."""

    dtype: DType
    fit: Fit
    theory: Spread
    fitted: Spread


def measure(
    name: str, dtype: DType, *, rows: int, seed: int, without: Sequence[Collection[str]] = ()
) -> Iterator[str | Measured]:
    """Fit the backend called `name` for `dtype` to one half of `rows`, and test the fit on the other half.

    Cases that have all features of an entry of `without`, in words of the ledger, are left out.

    Yields lines of progress, then the result. Runs in this process, whose torch has one thread from then on, as workers
    have; `measure_apart` protects the caller.

    Raises:
        UnknownBackend, BackendFileError: there is no such backend.
        CannotCalibrate: it raises, or its errors exceed its theoretical model.

    """
    torch.set_num_threads(1)
    backend = load(name)
    theory = backend.theory(dtype) if isinstance(backend, HasTheory) else backend.noise(dtype)
    halves: list[list[Sample]] = []
    for part in ("fit", "held out"):
        half: list[Sample] = []
        part_seed = derive_seed(seed, part)
        for half in draw_samples(name, backend, dtype, theory, rows=rows // 2, seed=part_seed, without=without):
            done = len(halves) * (rows // 2) + rows_of(half)
            yield f"{name} {dtype}: {min(done, rows):,} of {rows:,} rows"
        halves.append(half)
    ours, held_out = halves
    _check(name, dtype, [*ours, *held_out], theory)
    yield f"{name} {dtype}: fitting"
    noise, names = fit(ours, held_out, theory)
    before, after = spread(held_out, theory), spread(held_out, noise)
    yield Measured(
        dtype=dtype,
        fit=Fit(
            rows=rows_of((*ours, *held_out)),
            longest=max(sample.longest for sample in held_out),
            noise=noise,
            theory=theory,
            fitted=names,
            seen={
                tier: Seen(theory=quantiles(before.rows[tier]), fitted=quantiles(after.rows[tier]))
                for tier in before.rows
            },
            margins=after.largest,
        ),
        theory=before,
        fitted=after,
    )


def calibration(name: str, fits: dict[DType, Fit], *, seed: int, command: str) -> Calibration:
    """Make the calibration of a backend on this machine, dated now."""
    backend = resolve(name)
    return Calibration(
        backend=name,
        architecture=architecture_of(backend),
        date=datetime.now(UTC).date().isoformat(),
        command=command,
        seed=seed,
        versions={
            "attnfuzz": attnfuzz.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            **versions_of(backend),
        },
        dtypes=fits,
    )


def _check(name: str, dtype: DType, samples: list[Sample], theory: NoiseModel) -> None:
    """Raise CannotCalibrate if errors exceed the theoretical model: a bug, or a model that is too tight."""
    for sample in samples:
        tier, margin = max(largest_margins(sample.under(theory)), key=lambda found: found[1])
        if not margin <= 1:
            raise CannotCalibrate(
                f"{name}, {dtype}: {tier} sees errors {margin:.3g} times as large as the noise model before "
                "calibration allows: fuzz it first, and if it is right, give it a coarser noise model to start from"
            )
