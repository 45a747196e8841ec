"""`attnfuzz calibrate`: measures the error of correct kernels, and fits the noise models that they are judged by."""

import importlib.util
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.measured import architecture_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calibrate.apart import CalibrationRequest, measure_apart
from attnfuzz.harness.calibrate.calibrate import Measured, calibration
from attnfuzz.harness.calibrate.sample import CannotCalibrate
from attnfuzz.harness.campaign.prepare import prepare
from attnfuzz.harness.cli.given import Trees, chosen_backends, compiled_backends
from attnfuzz.harness.cli.selftests.answers import CalibrationAnswer, Calibrations
from attnfuzz.harness.cli.terminal import (
    BadInput,
    Exit,
    Terminal,
    answer,
    details,
    is_quiet,
    new_table,
    print_line,
    tell,
    warn,
)
from attnfuzz.harness.family import family_with
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger, default_ledger
from attnfuzz.reference.calibration import file_name, save
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType

DEFAULT_FOLDER = Path("attnfuzz-calibrations")


def calibrate(
    *,
    backends: tuple[str, ...],
    device: Device | None,
    trees: Trees,
    rows: int,
    seconds: float | None,
    jobs: int,
    ledger: Path | None,
    seed: int,
    output: Path | None,
    plots: Path | None,
) -> Exit:
    """Measure the error of correct backends, and write noise models that are fitted to it."""
    if plots is not None and importlib.util.find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib: pip install 'attnfuzz[plots]'")
    names = chosen_backends(backends, device, trees)
    for name in names:
        if (engine := engine_of(name)) is not None:
            raise BadInput(f"{name} has the kernels of {' and '.join(engine.kinds)} on this machine: calibrate those")
        capability = resolve(name).capability
        if not isinstance(capability, Capability):
            raise BadInput(f"{name} is no attention on a KV cache: only that can be calibrated")
        if not family_with(capability).noise_dtypes(capability):
            raise BadInput(f"results of {name} are compared by their bits: there is nothing to calibrate")
    entries = Ledger.load(path).entries if (path := ledger or default_ledger()) is not None else ()
    names = compiled_backends(names, tell)
    prepare(names, tell)
    folder = output or DEFAULT_FOLDER
    # Before the measurements, which take minutes: a folder that can't be created would lose them.
    folder.mkdir(parents=True, exist_ok=True)
    requests = [
        CalibrationRequest(backend=name, dtype=dtype, rows=rows, seed=seed, without=_known(entries, name))
        for name in names
        for dtype in resolve(name).capability.dtypes
    ]
    written, skipped = [], []
    for name, measured, reasons in _by_backend(requests, jobs=jobs, seconds=seconds):
        skipped += reasons
        if measured:
            written.append(_written(name, measured, rows, seed, folder, plots))
    answer(Calibrations(calibrations=tuple(written)))
    if skipped and len(requests) == 1:
        raise CannotCalibrate(skipped[0])
    for reason in skipped:
        warn(f"Skipped: {reason}")
    return Exit.FAILED if skipped else Exit.CLEAN


def _known(entries: Sequence[Entry], name: str) -> tuple[tuple[str, ...], ...]:
    """Return the features that known failures of a backend need, in words of the ledger."""
    table = family_with(resolve(name).capability).table
    about = (entry for entry in entries if entry.features and entry.is_about(name))
    return tuple(dict.fromkeys(tuple(sorted(table.current(entry.features))) for entry in about))


def _by_backend(
    requests: Sequence[CalibrationRequest], *, jobs: int, seconds: float | None
) -> Iterator[tuple[str, list[Measured], list[str]]]:
    """Yield (backend, its fits, the reasons for dtypes without one), with the progress on standard error."""
    left = Counter(request.backend for request in requests)
    fits: dict[str, list[Measured]] = {}
    reasons: dict[str, list[str]] = {}
    status = Terminal(stderr=True, quiet=is_quiet())
    with status.status("drawing", spinner="dots") as shown:
        for request, result in measure_apart(requests, jobs=jobs, seconds=seconds, tell=shown.update):
            name = request.backend
            if isinstance(result, Measured):
                fits.setdefault(name, []).append(result)
                tell(f"{name}, {request.dtype}: {result.fit.rows:,} rows")
            else:
                reasons.setdefault(name, []).append(result.reason)
            left[name] -= 1
            if not left[name]:
                order = sorted(fits.get(name, []), key=lambda each: list(DType).index(each.dtype))
                yield name, order, reasons.get(name, [])


def _written(
    name: str, measured: list[Measured], rows: int, seed: int, folder: Path, plots: Path | None
) -> CalibrationAnswer:
    """Write the calibration of one backend, and print the fit."""
    command = f"attnfuzz calibrate --backend {shlex.quote(name)} --rows {rows} --seed {seed}"
    fits = {one.dtype: one.fit for one in measured}
    path = folder / file_name(name, architecture_of(resolve(name)))
    save(path, calibration(name, fits, seed=seed, command=command))
    console = details()
    console.print(Text.assemble((name, "bold"), f" on {architecture_of(resolve(name))}"))
    console.print(_table(measured))
    print_line(Terminal(), str(path) if is_quiet() else f"Written to {path}")
    if plots is not None:
        # Imported late, because matplotlib is optional.
        from attnfuzz.harness.calibrate.plot import plot  # noqa: PLC0415

        plot(plots / f"{path.stem}.png", name, measured)
    return CalibrationAnswer(
        backend=name,
        architecture=architecture_of(resolve(name)),
        path=str(path),
        rows={dtype.value: fit.rows for dtype, fit in fits.items()},
        margins={
            dtype.value: {str(tier): margin for tier, margin in fit.margins.items()} for dtype, fit in fits.items()
        },
    )


def _table(measured: list[Measured]) -> Table:
    """Return the fitted values, as shares of the theoretical ones, and the largest margins of held-out rows."""
    table = new_table("dtype", "fitted, of its theoretical value", "tier", "p99.9 before", "now", "largest margin")
    for one in measured:
        fit = one.fit
        shares = [f"{name} {getattr(fit.noise, name) / getattr(fit.theory, name):.2g}" for name in fit.fitted]
        for index, (tier, margin) in enumerate(sorted(fit.margins.items())):
            seen = fit.seen.get(tier)
            quantiles = (f"{seen.theory.p999:.2g}", f"{seen.fitted.p999:.2g}") if seen else ("", "")
            heading = (one.dtype.value, ", ".join(shares) or "nothing") if index == 0 else ("", "")
            table.add_row(*heading, tier, *quantiles, f"{margin:.2g}")
    return table
