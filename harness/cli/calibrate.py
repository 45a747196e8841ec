"""`attnfuzz calibrate`: measures the error of correct kernels, and fits the noise models that they are judged by."""

import importlib.util
import shlex
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calibrate.apart import measure_apart
from attnfuzz.harness.calibrate.calibrate import Measured, architecture_of, calibration
from attnfuzz.harness.campaign.prepare import prepare
from attnfuzz.harness.cli.given import PathTo, backends_option, counted, out_option, seed_option
from attnfuzz.harness.cli.terminal import BadInput, Terminal, new_table, tell
from attnfuzz.reference.calibration import file_name, save

FEWEST_ROWS = 1000
"""What is needed to fit anything at all."""


@click.command()
@backends_option("A backend that passes")
@click.option(
    "--rows",
    type=counted(FEWEST_ROWS),
    default=100_000,
    show_default=True,
    help="Rows, (token, head), for each dtype of queries: half to fit, half to test the fit.",
)
@seed_option("Draw the cases of an earlier calibration again.")
@out_option("attnfuzz-calibrations", "Folder for one JSON file per backend.")
@click.option("--plot", "plots", type=PathTo(file_okay=False), help="Folder for one PNG each.")
def calibrate(*, backends: tuple[str, ...], rows: int, seed: int, out: Path, plots: Path | None) -> None:
    """Measure the error of correct backends on this machine, and fit their noise models to it.

    A fit only tightens the model that a backend has without it. Calibrate what passes.
    """
    if plots is not None and importlib.util.find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib: pip install 'attnfuzz[plots]'")
    for name in backends:
        if (engine := engine_of(name)) is not None:
            raise BadInput(f"{name} has the kernels of {' and '.join(engine.kinds)} on this machine: calibrate those")
    prepare(backends, tell)
    # Before the measurements, which take minutes: a folder that can't be made would lose them.
    out.mkdir(parents=True, exist_ok=True)
    console = Terminal()
    for name in backends:
        measured = _measured(name, rows, seed)
        command = f"attnfuzz calibrate --backend {shlex.quote(name)} --rows {rows} --seed {seed}"
        fits = {one.dtype: one.fit for one in measured}
        path = out / file_name(name, architecture_of(name))
        save(path, calibration(name, fits, seed=seed, command=command))
        console.print(Text.assemble((name, "bold"), f" on {architecture_of(name)}"))
        console.print(_table(measured))
        console.print(f"Written to {path}", soft_wrap=True, markup=False)
        if plots is not None:
            # Imported late: matplotlib is no requirement.
            from attnfuzz.harness.calibrate.plot import plot  # noqa: PLC0415

            plot(plots / f"{path.stem}.png", name, measured)


def _measured(name: str, rows: int, seed: int) -> list[Measured]:
    """A fit for each dtype, with the progress on standard error. Raises CannotCalibrate."""
    status = Terminal(stderr=True)
    with status.status(f"{name}: drawing", spinner="dots") as shown:
        found = []
        for dtype in resolve(name).capability.dtypes:
            found.append(measure_apart(name, dtype, rows=rows, seed=seed, tell=shown.update))
            tell(f"{name}, {dtype}: {found[-1].fit.rows:,} rows")
        return found


def _table(measured: list[Measured]) -> Table:
    """What was fitted, as shares of the theoretical values, and the largest margins of rows held out."""
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
