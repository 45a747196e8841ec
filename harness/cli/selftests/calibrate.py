"""`attnfuzz calibrate`: measures the error of correct kernels, and fits the noise models that they are judged by."""

import importlib.util
import shlex
from pathlib import Path

from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calibrate.apart import measure_apart
from attnfuzz.harness.calibrate.calibrate import Measured, architecture_of, calibration
from attnfuzz.harness.campaign.prepare import prepare
from attnfuzz.harness.cli.answers import CalibrationAnswer, Calibrations
from attnfuzz.harness.cli.given import Trees, chosen_backends
from attnfuzz.harness.cli.terminal import (
    BadInput,
    Terminal,
    answer,
    details,
    is_quiet,
    new_table,
    print_line,
    tell,
)
from attnfuzz.harness.family import family_with
from attnfuzz.reference.calibration import file_name, save
from attnfuzz.reference.device import Device

DEFAULT_FOLDER = Path("attnfuzz-calibrations")


def calibrate(
    *,
    backends: tuple[str, ...],
    device: Device | None,
    trees: Trees,
    rows: int,
    seed: int,
    output: Path | None,
    plots: Path | None,
) -> None:
    """Measure the error of correct backends, and write noise models that are fitted to it."""
    if plots is not None and importlib.util.find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib: pip install 'attnfuzz[plots]'")
    names = chosen_backends(backends, device, trees)
    for name in names:
        if (engine := engine_of(name)) is not None:
            raise BadInput(f"{name} has the kernels of {' and '.join(engine.kinds)} on this machine: calibrate those")
        capability = resolve(name).capability
        if not family_with(capability).noise_dtypes(capability):
            raise BadInput(f"results of {name} are compared by their bits: there is nothing to calibrate")
    prepare(names, tell)
    folder = output or DEFAULT_FOLDER
    # Before the measurements, which take minutes: a folder that can't be created would lose them.
    folder.mkdir(parents=True, exist_ok=True)
    answer(Calibrations(calibrations=tuple([_calibrated(name, rows, seed, folder, plots) for name in names])))


def _calibrated(name: str, rows: int, seed: int, folder: Path, plots: Path | None) -> CalibrationAnswer:
    """Calibrate one backend, and print the fit."""
    measured = _measured(name, rows, seed)
    command = f"attnfuzz calibrate --backend {shlex.quote(name)} --rows {rows} --seed {seed}"
    fits = {one.dtype: one.fit for one in measured}
    path = folder / file_name(name, architecture_of(name))
    save(path, calibration(name, fits, seed=seed, command=command))
    console = details()
    console.print(Text.assemble((name, "bold"), f" on {architecture_of(name)}"))
    console.print(_table(measured))
    print_line(Terminal(), str(path) if is_quiet() else f"Written to {path}")
    if plots is not None:
        # Imported late, because matplotlib is optional.
        from attnfuzz.harness.calibrate.plot import plot  # noqa: PLC0415

        plot(plots / f"{path.stem}.png", name, measured)
    return CalibrationAnswer(
        backend=name,
        architecture=architecture_of(name),
        path=str(path),
        rows={dtype.value: fit.rows for dtype, fit in fits.items()},
        margins={
            dtype.value: {str(tier): margin for tier, margin in fit.margins.items()} for dtype, fit in fits.items()
        },
    )


def _measured(name: str, rows: int, seed: int) -> list[Measured]:
    """Return a fit for each dtype, with the progress on standard error. Raises CannotCalibrate."""
    status = Terminal(stderr=True, quiet=is_quiet())
    with status.status(f"{name}: drawing", spinner="dots") as shown:
        found = []
        for dtype in resolve(name).capability.dtypes:
            found.append(measure_apart(name, dtype, rows=rows, seed=seed, tell=shown.update))
            tell(f"{name}, {dtype}: {found[-1].fit.rows:,} rows")
        return found


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
