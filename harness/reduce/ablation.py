"""Ablation: finding the features that a failure needs, by running its case without each of them.

A `Feature` is a removable special property of a case: sinks, a window, padding, a replayed graph. `ablations` yields
the variants of a case without each feature that it has; `needed` runs them, and returns the features without which the
case passes. `attnfuzz.harness.reduce.transfers` does the opposite: it yields the same case in places where it may fail
as well.

A feature is needed if no variant without it fails. A variant may lack the feature or have it at a harmless value, such
as a window that is longer than all keys. A feature that a backend requires does not count as needed, because there is
no variant to run, or the backend refuses all of them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from attnfuzz.harness.reduce import removals
from attnfuzz.harness.reduce.cuts import possible
from attnfuzz.harness.reduce.removals import Removal, case_with, geometry_with, part_with
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    Guard,
    Interleave,
    KvView,
    Magnitude,
    Mask,
    OtherGroup,
    Outputs,
    Pace,
    PaddedSlot,
    PageOrder,
    QueryView,
    SharedKeys,
    TableTail,
    Unused,
    ValueFamily,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.rope import Pairing, RopeScaling, RotaryShare
from attnfuzz.strategies.coverage import axes, axis_of_form, features_of

FRESH_SEEDS = 2
"""Number of value seeds for rerunning a passing variant, since an error near its bound may pass by chance."""

VECTOR = 16
"""Number of elements of a head that kernels handle at a time. The rest often takes another code path."""

TILE = 64
"""Number of keys that many kernels load at a time."""


@dataclass(frozen=True, order=True)
class Feature:
    """A special property of a case, called `name`, that `removal` removes.

    A case has it if it has one of the coverage features in `shown_by`, or if `present` returns True. A `clue` points to
    the cause of a failure, and is kept during shrinking; the others (sizes, values, guards) make a failure visible. If
    `memory` is set, the feature is NaN in memory that must not matter, and its removal puts numbers there.
    """

    name: str
    shown_by: frozenset[str] = field(compare=False, repr=False)
    removal: Removal = field(compare=False, repr=False)
    clue: bool = field(compare=False, repr=False, default=True)
    memory: str = field(compare=False, repr=False, default="")
    present: Callable[[Case], bool] = field(compare=False, repr=False, default=lambda _: False)

    def __str__(self) -> str:
        return self.name


class Ablation(NamedTuple):
    """A feature of a case, and the variants of the case without it."""

    feature: Feature
    variants: tuple[Case, ...]


def features_in(case: Case) -> frozenset[Feature]:
    """Return the features that a case has."""
    shown = features_of(case)
    return frozenset(
        feature for feature in FEATURES.values() if not shown.isdisjoint(feature.shown_by) or feature.present(case)
    )


def ablations(
    case: Case, *, allowed: Callable[[Case], bool] = lambda _: True, among: Collection[Feature] | None = None
) -> Iterator[Ablation]:
    """Yield each feature of `case` with its possible, `allowed` variants without it, the plainest first.

    Features without such a variant are left out, and so are those not `among` the given ones (default: all).
    """
    for feature in sorted(features_in(case) if among is None else features_in(case).intersection(among)):
        variants = tuple(_variants(case, feature, allowed))
        if variants:
            yield Ablation(feature, variants)


def needed(
    case: Case,
    fails: Callable[[Case], bool],
    *,
    allowed: Callable[[Case], bool] = lambda _: True,
    among: Collection[Feature] | None = None,
    runs: Callable[[Case], int] = lambda _: FRESH_SEEDS + 1,
    refused: Callable[[Case], bool] = lambda _: False,
) -> frozenset[Feature]:
    """Return the features that the failure of `case` needs, `among` the given ones (default: all).

    `fails` runs a case and returns whether it fails alike, as `case` does. `runs` returns the number of value seeds
    with which a variant has to pass, or 0 if no feasible number is enough. `refused` returns whether the backend
    answered Unsupported to a variant that was run.
    """

    def passes(variant: Case) -> bool:
        for again in reseeded(variant, runs(variant)):
            if fails(again):
                return False
            if refused(again):
                break
        return True

    return frozenset(
        feature
        for feature, variants in ablations(case, allowed=allowed, among=among)
        if all(map(runs, variants)) and all(map(passes, variants)) and not all(map(refused, variants))
    )


def reseeded(case: Case, seeds: int = FRESH_SEEDS + 1) -> Iterator[Case]:
    """Return the case with its own seed and those after it, `seeds` in total."""
    return (replace(case, seed=case.seed + offset) for offset in range(seeds))


def passes_if(needs: Collection[str]) -> list[str]:
    """Return a clause for each needed NaN in memory: the condition under which the case passes."""
    return [f"if {feature.memory} hold numbers" for feature in sorted(CONTENTS) if feature.name in needs]


def _variants(case: Case, feature: Feature, allowed: Callable[[Case], bool]) -> Iterator[Case]:
    for variant in dict.fromkeys(feature.removal(case)):
        # Without a feature, a case may have no relation to run, or no step.
        if possible(variant) and feature not in features_in(variant) and allowed(variant):
            yield variant


def _but(axis: str, *plain: str) -> frozenset[str]:
    """Return the features of an axis of coverage without the plain ones."""
    return frozenset(axes()[axis]) - {f"{axis}={value}" for value in plain}


def _rest_of_a_vector(case: Case) -> bool:
    geometry = case.geometry
    return geometry.latent is None and bool(geometry.head_dim_qk % VECTOR or geometry.head_dim_vo % VECTOR)


def _partly_filled(case: Case) -> bool:
    return any(kv_len % case.geometry.page_size for kv_len in _lengths(case))


def _full(case: Case) -> bool:
    return any(kv_len and kv_len % case.geometry.page_size == 0 for kv_len in _lengths(case))


def _several_keys(case: Case) -> bool:
    return any(kv_len > 1 for kv_len in _lengths(case))


def _lengths(case: Case) -> set[int]:
    return {request.kv_len for step in case.steps for request in step.requests}


def _scaled(scale: str, name: str) -> Feature:
    return Feature(f"{name} scale", _but(f"{name} scale", "1"), part_with("scales", **{scale: 1.0}))


def _at_an_edge(scale: str, name: str) -> Feature:
    """Return the feature of a factor of 0 or below. Its removal leaves a positive factor."""
    shown_by = frozenset({f"{name} scale=0", f"{name} scale=below 0"})
    return Feature(f"{name} scale of 0 or below", shown_by, part_with("scales", **{scale: 0.5}))


_CONTENTS = (
    Feature(
        "NaN behind the last key",
        _but("behind the last key", Unused.NUMBERS),
        removals.numbers_in("behind"),
        memory="the slots behind the last key",
    ),
    Feature(
        "NaN in free pages",
        _but("free pages", Unused.NUMBERS),
        removals.numbers_in("free"),
        memory="pages of no request",
    ),
    Feature("NaN in outputs", _but("outputs", Outputs.STALE), case_with(outputs=Outputs.STALE), memory="the outputs"),
)

_CALLS = (
    *(
        Feature(
            form.value,
            frozenset({f"{axis_of_form(form)}={form}"}),
            removals.without(arguments=form),
        )
        for form in ArgumentForm
    ),
    *(Feature(use.value, frozenset({f"life={use}"}), removals.without(life=use)) for use in EarlierUse),
)

_CLUES = (
    Feature("window", _but("window", "none"), removals.without_window),
    Feature("keys outside of the window", frozenset({"window=cuts keys off"}), removals.no_window),
    Feature("window of one key", frozenset({"window=a query's own key"}), removals.wider_window),
    Feature("mask", _but("mask", Mask.CAUSAL), case_with(mask=Mask.CAUSAL)),
    Feature("mask with holes", _but("mask", Mask.CAUSAL, Mask.FULL), case_with(mask=Mask.FULL)),
    Feature("rows that a mask hides all keys from", frozenset({"mask=empty_rows"}), case_with(mask=Mask.CUSTOM)),
    Feature("sinks", _but("sinks", "none"), removals.no_sinks),
    Feature("soft cap", _but("soft cap", "none"), geometry_with(soft_cap=0.0)),
    Feature("16 bits", _but("dtype", DType.FLOAT32), removals.in_fp32),
    Feature(
        f"a head dim that is no multiple of {VECTOR}",
        frozenset(),
        removals.multiples_of(VECTOR),
        present=_rest_of_a_vector,
    ),
    Feature("fp8 KV", _but("KV dtype", "that of the queries"), removals.no_fp8),
    Feature("magnitude", _but("magnitude", Magnitude.PLAIN), case_with(magnitude=Magnitude.PLAIN)),
    _scaled("softmax", "softmax"),
    _scaled("k", "K"),
    _scaled("v", "V"),
    Feature("query scale", _but("query scale", "1"), part_with("queries", scale=1.0)),
    Feature("kept queries", _but("kept queries", "none"), part_with("queries", kept=False)),
    Feature("four ranks", _but("ranks", "up to two"), part_with("shared_keys", ranks=SharedKeys().ranks)),
    Feature("interleave", _but("interleave", Interleave.TOKEN), part_with("shared_keys", interleave=Interleave.TOKEN)),
    Feature("all to all", _but("all to all", "none"), part_with("shared_keys", all_to_all=False)),
    _at_an_edge("softmax", "softmax"),
    _at_an_edge("k", "K"),
    _at_an_edge("v", "V"),
    Feature(
        "scales per head", _but("scales per", "tensor", "block"), part_with("scales", granularity=Granularity.TENSOR)
    ),
    Feature(
        "scales per token", frozenset({"scales per=token_head"}), part_with("scales", granularity=Granularity.HEAD)
    ),
    Feature("swizzled scales", _but("scales of blocks", "linear"), part_with("scales", blocks=BlockScales.LINEAR)),
    Feature("NHD layout", _but("layout", KvLayout.HND), geometry_with(kv_layout=KvLayout.HND)),
    Feature("page order", _but("page order", PageOrder.IDENTITY), part_with("pages", order=PageOrder.IDENTITY)),
    Feature("offsets beyond 2^31", _but("pool", "small"), part_with("pages", hole=0)),
    Feature("table tail", _but("table tail", TableTail.ZEROS), part_with("pages", tail=TableTail.ZEROS)),
    Feature("table slack", _but("table slack", "none"), part_with("pages", table_slack=0)),
    Feature("table gap", _but("table gap", "none"), part_with("views", table_gap=0)),
    Feature("tombstones", _but("tombstones", "none"), removals.pages_kept),
    Feature("window tail", _but("window tail", "none"), part_with("pages", window_tail=False)),
    Feature("other group", _but("other group", "none"), part_with("pages", other_group=OtherGroup.NONE)),
    Feature("skipped padding", _but("padded slot", PaddedSlot.DUMMY), case_with(padded_slot=PaddedSlot.DUMMY)),
    Feature(
        "rotary share", _but("rotary share", "none", RotaryShare.WHOLE), part_with("rope", share=RotaryShare.WHOLE)
    ),
    Feature(
        "rotary pairing", _but("rotary pairing", "none", Pairing.HALVES), part_with("rope", pairing=Pairing.HALVES)
    ),
    Feature("rotary theta", _but("rotary theta", "none", "10000"), part_with("rope", theta=10000.0)),
    Feature("rotary scaling", _but("rotary scaling", RopeScaling.NONE), part_with("rope", scaling=RopeScaling.NONE)),
    Feature("rotary shift", _but("rotary shift", "none"), part_with("rope", shift=0)),
    Feature("query view", _but("query view", QueryView.CONTIGUOUS), part_with("views", query=QueryView.CONTIGUOUS)),
    Feature("KV view", _but("KV view", KvView.SEPARATE), part_with("views", kv=KvView.SEPARATE)),
    Feature("used workspace", _but("workspace", Workspace.FRESH), case_with(workspace=Workspace.FRESH)),
    Feature("late device", _but("pace", Pace.PROMPT), case_with(pace=Pace.PROMPT)),
    *_CALLS,
    Feature("stated maxima", _but("stated maxima", "exact"), case_with(max_len_slack=0)),
    Feature("token budget", _but("token budget", "none"), part_with("serving", budget=0)),
    Feature("lacking pages", _but("lacking pages", "none"), part_with("serving", shortage=0)),
    Feature("asynchronous scheduling", _but("asynchronous", "none"), part_with("serving", asynchronous=False)),
    Feature("relation", _but("relation", "none"), removals.no_relation),
    Feature("replay", _but("launch", "eager"), removals.no_graphs),
    Feature("idle step", _but("idle step", "none"), removals.no_idle_steps),
    Feature("several steps", _but("steps", "one"), removals.one_step),
    Feature("padding", _but("padding", "none") | {"idle step=padding alone"}, removals.no_padding),
    Feature("ragged queries", frozenset({"q lens=ragged"}), removals.equal_q_lens),
    Feature("idle request", frozenset({"q lens=an idle request"}), removals.no_idle_requests),
    Feature("empty KV", _but("without keys", "none"), removals.no_empty_kv),
    Feature("fewer keys than queries", frozenset({"prefix=fewer keys than queries"}), removals.no_short_kv),
    Feature("permuted slots", _but("slots", "in order"), removals.slots_in_order),
    Feature("several chunks", _but("chunks", "no prefix", "one"), removals.one_chunk),
)

_VISIBILITY = (
    Feature("values", _but("values", ValueFamily.NORMAL), case_with(values=ValueFamily.NORMAL), clue=False),
    Feature("left guard", _but("guard", Guard.RIGHT), case_with(guard=Guard.RIGHT), clue=False),
    Feature("stale outputs", _but("outputs", Outputs.POISONED), case_with(outputs=Outputs.POISONED), clue=False),
)

_SHAPE = (
    Feature("several requests", _but("batch", "1"), removals.one_request, clue=False),
    Feature("grouped heads", _but("group", "1"), removals.no_groups, clue=False),
    Feature("several KV heads", _but("KV heads", "1"), removals.one_kv_head, clue=False),
    Feature("V dim", _but("V dim", "as K's"), removals.equal_head_dims, clue=False),
    Feature(
        "several pages",
        frozenset({"kv len=a page and one", "kv len=whole pages", "kv len=several pages"}),
        removals.one_page,
        clue=False,
    ),
    Feature("partly filled page", frozenset(), removals.full_pages, clue=False, present=_partly_filled),
    Feature("full last page", frozenset(), removals.no_full_pages, clue=False, present=_full),
    Feature("several keys", frozenset(), removals.one_key, clue=False, present=_several_keys),
    Feature(
        f"more than {TILE} keys",
        frozenset(),
        removals.at_most_keys(TILE),
        clue=False,
        present=lambda case: max(_lengths(case), default=0) > TILE,
    ),
    Feature("several queries", _but("longest q", "1"), removals.one_query, clue=False),
)

FEATURES: Mapping[str, Feature] = MappingProxyType(
    {each.name: each for each in (*_CLUES, *_CONTENTS, *_SHAPE, *_VISIBILITY)}
)
"""All features by name."""

SHAPE: frozenset[Feature] = frozenset(_SHAPE)
"""Features that are counts."""

CONTENTS: frozenset[Feature] = frozenset(_CONTENTS)
"""Clues that almost every case has: NaN in memory that must not matter."""

CLUES: frozenset[Feature] = frozenset(_CLUES) | CONTENTS
"""Features that point to a failure's cause."""

UNUSUAL: frozenset[Feature] = CLUES - CONTENTS - {FEATURES["16 bits"]}
"""Clues that a plain case does not have."""

TENSOR_FORMS: frozenset[Feature] = frozenset(FEATURES[form.value] for form in ArgumentForm if form.of_tensor)
"""Forms of tensors. A kernel that misreads one may fail in any way."""

ARGUMENTS: frozenset[Feature] = frozenset(_CALLS) | frozenset(
    FEATURES[f"{factor} scale of 0 or below"] for factor in ("softmax", "K", "V")
)
"""Forms, edges and earlier uses of arguments, which are the same in all backends that take the argument."""
