"""Features of the numbers of a case: values, factors and scales."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnfuzz.reference.case import BlockScales, Case, Granularity, Magnitude, ValueFamily
from attnfuzz.reference.edges import Edge, edge_of
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import FACTORS, QUERY_SCALES
from attnfuzz.reference.features.row import (
    FeatureRow,
    Violation,
    but,
    classed,
    flag,
    grouped,
    of_case,
    offers,
    only,
    removable,
    single,
)
from attnfuzz.reference.magnitudes import OF_LATENTS, magnitudes_of

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability


def _factor(scale: str, name: str, zero: Edge, negative: Edge) -> FeatureRow[Case]:
    """Return the row of a factor of `Scales`. Without one of 0 or below, a positive factor is left."""

    def supported(can: "Capability") -> Iterable[str]:
        if can.writes if scale == "softmax" else not can.kv_scales:
            return ("1",)
        edges = {rule.edge for rule in can.edges}
        return ("1", "below 1", "above 1", *(["0"] * (zero in edges)), *(["below 0"] * (negative in edges)))

    def refusal(can: "Capability", case: Case) -> str | None:
        factor = getattr(case.scales, scale)
        if factor != 1 and scale == "softmax" and can.writes:
            return "a softmax scale"
        if factor != 1 and scale != "softmax" and not can.scales(case.geometry.kv_dtype):
            return f"scales of a {case.geometry.kv_dtype} KV cache" if can.kv_scales else "KV scales other than 1"
        edge = edge_of(scale, factor)
        return edge if edge is not None and edge not in {rule.edge for rule in can.edges} else None

    return of_case(
        classed(f"{name} scale", FACTORS, lambda case: getattr(case.scales, scale)),
        f"scales.{scale}",
        removable(f"{name} scale", but("1"), part_with("scales", **{scale: 1.0})),
        removable(f"{name} scale of 0 or below", only("0", "below 0"), part_with("scales", **{scale: 0.5})),
        filed={"scaled": but("1")},
        formerly={zero: f"{name} scale=0", negative: f"{name} scale=below 0", "scaled": "scales"},
        supported=supported,
        lack="the backend does not take such a factor",
        refusal=refusal,
        optional=(
            ("factors of 0 and below", lambda can: None if can.writes else can.edges)
            if scale == "softmax"
            else ("scales of K and V", lambda can: can.kv_scales)
        ),
    )


SCALES = grouped(
    "scales",
    _factor("softmax", "softmax", Edge.SOFTMAX_ZERO, Edge.SOFTMAX_NEGATIVE),
    _factor("k", "K", Edge.K_ZERO, Edge.K_NEGATIVE),
    _factor("v", "V", Edge.V_ZERO, Edge.V_NEGATIVE),
    of_case(
        single("scales per", Granularity, lambda case: case.scales.granularity),
        "scales.granularity",
        removable("scales per head", but("tensor", "block"), part_with("scales", granularity=Granularity.TENSOR)),
        removable("scales per token", only("token_head"), part_with("scales", granularity=Granularity.HEAD)),
        filed={"scaled": but("tensor")},
        supported=lambda can: can.granularities,
        lack="the backend does not take such scales",
        refusal=lambda can, case: (
            None if case.scales.granularity in can.granularities else f"scales per {case.scales.granularity.words}"
        ),
    ),
    of_case(
        single("scales of blocks", BlockScales, lambda case: case.scales.blocks),
        "scales.blocks",
        removable("swizzled scales", but("linear"), part_with("scales", blocks=BlockScales.LINEAR)),
        filed={"scaled": but("linear")},
        **offers(
            lambda can: can.block_scales,
            "the backend does not have this layout of scales",
            lambda case: case.scales.blocks,
            "{} scales of blocks",
        ),
    ),
    line="values",
)

QUERIES = grouped(
    "queries of a server",
    of_case(
        classed("query scale", QUERY_SCALES, lambda case: case.queries.scale),
        "queries.scale",
        removable("query scale", but("1"), part_with("queries", scale=1.0)),
        filed={"query scale": but("1")},
        printed=lambda case: f"query scale {case.queries.scale:g}" if case.queries.scale != 1 else "",
        supported=lambda can: QUERY_SCALES.names if can.query_scales else ("1",),
        lack="the backend has no scale of queries",
        refusal=lambda can, case: "a scale of queries" if case.queries.scale != 1 and not can.query_scales else None,
    ),
    of_case(
        flag("kept queries", lambda case: case.queries.kept),
        "queries.kept",
        removable("kept queries", but("none"), part_with("queries", kept=False)),
        filed={"kept queries": but("none")},
        # The line has it with the dtypes.
        printed=lambda _: "",
        supported=lambda can: ("none", "yes") if can.kept_queries else ("none",),
        lack="the backend keeps no queries beside a quantised cache",
        refusal=lambda can, case: (
            "unquantised queries with a quantised KV cache" if case.queries.kept and not can.kept_queries else None
        ),
    ),
    line="geometry",
)

_WRITTEN = (ValueFamily.NORMAL, ValueFamily.EXTREME, ValueFamily.ONE_HOT, ValueFamily.LARGE_LOGITS)
_SCALED = (ValueFamily.NORMAL, ValueFamily.UNEVEN, ValueFamily.UNEVEN, ValueFamily.ONE_HOT, ValueFamily.LARGE_LOGITS)
_OF_WRITERS = (ValueFamily.EXTREME, ValueFamily.UNEVEN)


def families(can: "Capability") -> tuple[ValueFamily, ...]:
    """Return value families: attention needs finite numbers, and a writer of the KV cache only moves single ones.

    A writer that computes scales gets rows of many magnitudes. Repeated families are drawn more often.
    """
    if not can.writes:
        return tuple(family for family in ValueFamily if family not in _OF_WRITERS)
    if not any(each.computed for each in can.granularities):
        return _WRITTEN
    return _SCALED if all(each.computed for each in can.granularities) else (*_WRITTEN, ValueFamily.UNEVEN)


def _refused_values(can: "Capability", case: Case) -> str | None:
    if can.writes:
        computed = case.values is ValueFamily.EXTREME and case.scales.granularity.computed
        return "numbers that are not finite under scales that follow from them" if computed else None
    if case.values is ValueFamily.EXTREME:
        return "keys and values that are not finite"
    return "keys and values of uneven magnitudes" if case.values is ValueFamily.UNEVEN else None


def magnitudes(can: "Capability") -> tuple[Magnitude, ...]:
    """Return magnitudes of q, K and V. A writer of the KV cache gets value families with numbers of all sizes."""
    if can.writes:
        return (Magnitude.PLAIN,)
    return tuple(each for each in can.magnitudes if not can.latent or each in OF_LATENTS)


def _refused_magnitude(can: "Capability", case: Case) -> str | None:
    if can.writes and case.magnitude is not Magnitude.PLAIN:
        return f"{case.magnitude} magnitudes, instead of which a writer gets other values"
    return f"{case.magnitude} magnitudes" if not can.writes and case.magnitude not in can.magnitudes else None


def _impossible_magnitude(case: Case) -> Violation | None:
    if case.magnitude in magnitudes_of(case.geometry, case.scales, case.values):
        return None
    legal = f"must be {Magnitude.PLAIN} with these dtypes, latents, scales of K and V, or values"
    return "magnitude", case.magnitude.value, legal


VALUES = grouped(
    "numbers",
    of_case(
        single("values", ValueFamily, lambda case: case.values),
        "values",
        removable("values", but(ValueFamily.NORMAL), case_with(values=ValueFamily.NORMAL), clue=False),
        supported=families,
        lack="not drawn: other values show nothing of this kernel",
        refusal=_refused_values,
    ),
    of_case(
        single("magnitude", Magnitude, lambda case: case.magnitude),
        "magnitude",
        removable("magnitude", but(Magnitude.PLAIN), case_with(magnitude=Magnitude.PLAIN)),
        filed={"magnitude": but(Magnitude.PLAIN)},
        supported=magnitudes,
        lack="the backend does not have this magnitude",
        refusal=_refused_magnitude,
        rule=_impossible_magnitude,
        optional=(
            "large and tiny magnitudes",
            lambda can: None if can.writes else can.magnitudes != (Magnitude.PLAIN,),
        ),
    ),
    line="values",
)
