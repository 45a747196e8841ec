"""Plot the tiers' results on held-out rows, under the theoretical and the calibrated noise model. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnfuzz.harness.calibrate.calibrate import Measured

_AXES = {
    "T1": "T1: worst element, error / bound",
    "T2": "T2: z², mean square error / model",
    "T4": "T4: LSE error / bound",
}
# Blue and vermilion of Okabe and Ito (2008), distinguishable with any color vision; also dashed.
_CALIBRATED, _THEORY = "#0072B2", "#D55E00"
_POINTS = 200
_DPI = 100


def plot(path: Path, name: str, measured: Sequence[Measured]) -> None:
    """Write a PNG: a row of panels per dtype, a panel per tier. Raises OSError."""
    tiers = list(measured[0].fitted.rows)
    figure = Figure(figsize=(3.6 * len(tiers), 2.6 * len(measured) + 0.6), layout="constrained")
    figure.suptitle(f"{name}: rows held out of the calibration")
    panels = figure.subplots(len(measured), len(tiers), squeeze=False, sharex="col", sharey=True)
    for row, (panel_row, one) in enumerate(zip(panels, measured, strict=True)):
        for column, (panel, tier) in enumerate(zip(panel_row, tiers, strict=True)):
            _panel(panel, one, tier)
            if column == 0:
                panel.set_ylabel(f"{one.dtype}\nshare of rows above")
            if row == len(measured) - 1:
                panel.set_xlabel(_AXES[tier])
    panels[0][0].legend(loc="lower left", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def _panel(panel: Axes, one: Measured, tier: str) -> None:
    for seen, color, dashes, label in (
        (one.theory, _THEORY, "--", "theoretical model"),
        (one.fitted, _CALIBRATED, "-", "calibrated model"),
    ):
        values = seen.rows[tier].sort(descending=True).values
        # Ranks are even on the logarithmic axis: the tail matters.
        ranks = torch.logspace(0, torch.tensor(float(len(values))).log10().item(), _POINTS).long().clamp(1, len(values))
        panel.plot(values[ranks - 1].clamp(min=1e-6), ranks / len(values), dashes, color=color, label=label)
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(1e-4, 20)
    panel.grid(visible=True, linewidth=0.3)
