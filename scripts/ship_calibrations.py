"""Take over calibrations whose fit is much tighter than theory.

python scripts/ship_calibrations.py FOLDER

Copies those of FOLDER into reference/calibrations, without the dtypes of which no tier's largest held-out row comes at
least twice as close to its bound as under theory, or with too few rows: they would find no smaller errors, or might
allow too little. Prints a line for each.
"""

import sys
from pathlib import Path

from msgspec.structs import replace

from attnfuzz.reference.calibration import Fit, load, save

SHIPPED = Path(__file__).parents[1] / "reference" / "calibrations"
FACTOR = 2.0
ROWS = 5000


def tightened(fit: Fit) -> float:
    """Return how many times closer the largest row of a tier comes to its bound than under theory. T2 has squares."""
    return max(
        (seen.fitted.largest / seen.theory.largest) ** (0.5 if tier == "T2" else 1.0)
        for tier, seen in fit.seen.items()
        if seen.theory.largest > 0
    )


def main() -> None:
    """Copy and print."""
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        calibration = load(path)
        kept = {
            dtype: fit for dtype, fit in calibration.dtypes.items() if tightened(fit) >= FACTOR and fit.rows >= ROWS
        }
        shares = ", ".join(f"{dtype} {tightened(fit):.2g}" for dtype, fit in calibration.dtypes.items())
        sys.stdout.write(f"{calibration.backend}: {shares}; {len(kept)} dtypes taken over\n")
        if kept:
            save(SHIPPED / path.name, replace(calibration, dtypes=kept))


if __name__ == "__main__":
    main()
