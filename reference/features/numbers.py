"""Features of the numbers of a case: values, factors and scales."""

from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    Magnitude,
    ValueFamily,
)
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import FACTORS, QUERY_SCALES
from attnfuzz.reference.features.row import FeatureRow, but, classed, flag, grouped, of_case, only, removable, single


def _factor(scale: str, name: str) -> FeatureRow[Case]:
    """Return the row of a factor of `Scales`. Without one of 0 or below, a positive factor is left."""
    return of_case(
        classed(f"{name} scale", FACTORS, lambda case: getattr(case.scales, scale)),
        f"scales.{scale}",
        removable(f"{name} scale", but("1"), part_with("scales", **{scale: 1.0})),
        removable(f"{name} scale of 0 or below", only("0", "below 0"), part_with("scales", **{scale: 0.5})),
        filed={"scaled": but("1")},
        formerly={
            f"a {name} scale of 0": f"{name} scale=0",
            f"a {name} scale below 0": f"{name} scale=below 0",
            "scaled": "scales",
        },
    )


SCALES = grouped(
    "scales",
    _factor("softmax", "softmax"),
    _factor("k", "K"),
    _factor("v", "V"),
    of_case(
        single("scales per", Granularity, lambda case: case.scales.granularity),
        "scales.granularity",
        removable("scales per head", but("tensor", "block"), part_with("scales", granularity=Granularity.TENSOR)),
        removable("scales per token", only("token_head"), part_with("scales", granularity=Granularity.HEAD)),
        filed={"scaled": but("tensor")},
    ),
    of_case(
        single("scales of blocks", BlockScales, lambda case: case.scales.blocks),
        "scales.blocks",
        removable("swizzled scales", but("linear"), part_with("scales", blocks=BlockScales.LINEAR)),
        filed={"scaled": but("linear")},
    ),
)

QUERIES = grouped(
    "queries of a server",
    of_case(
        classed("query scale", QUERY_SCALES, lambda case: case.queries.scale),
        "queries.scale",
        removable("query scale", but("1"), part_with("queries", scale=1.0)),
        filed={"query scale": but("1")},
    ),
    of_case(
        flag("kept queries", lambda case: case.queries.kept),
        "queries.kept",
        removable("kept queries", but("none"), part_with("queries", kept=False)),
        filed={"kept queries": but("none")},
    ),
)

VALUES = grouped(
    "numbers",
    of_case(
        single("values", ValueFamily, lambda case: case.values),
        "values",
        removable("values", but(ValueFamily.NORMAL), case_with(values=ValueFamily.NORMAL), clue=False),
    ),
    of_case(
        single("magnitude", Magnitude, lambda case: case.magnitude),
        "magnitude",
        removable("magnitude", but(Magnitude.PLAIN), case_with(magnitude=Magnitude.PLAIN)),
        filed={"magnitude": but(Magnitude.PLAIN)},
    ),
)
