"""Take over calibrations whose fit is much tighter than theory.

python scripts/ship_calibrations.py FOLDER

Copies those of FOLDER into reference/calibrations, without the dtypes of which no parameter is at most half of its
theoretical value: others would only add files. Prints a line for each.
"""

import sys
from pathlib import Path

from msgspec.structs import replace

from attnfuzz.reference.calibration import Fit, load, save

SHIPPED = Path(__file__).parents[1] / "reference" / "calibrations"
FACTOR = 2.0


def tightest(fit: Fit) -> float:
    """Return the smallest share of its theoretical value that a fitted parameter has."""
    return min((getattr(fit.noise, name) / getattr(fit.theory, name) for name in fit.fitted), default=1.0)


def main() -> None:
    """Copy and print."""
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        calibration = load(path)
        kept = {dtype: fit for dtype, fit in calibration.dtypes.items() if tightest(fit) * FACTOR <= 1}
        shares = ", ".join(f"{dtype} {tightest(fit):.2g}" for dtype, fit in calibration.dtypes.items())
        sys.stdout.write(f"{calibration.backend}: {shares}; {len(kept)} dtypes taken over\n")
        if kept:
            save(SHIPPED / path.name, replace(calibration, dtypes=kept))


if __name__ == "__main__":
    main()
