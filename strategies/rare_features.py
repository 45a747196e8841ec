"""The draws of features that few backends have, and of a case's relation."""

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import (
    Case,
    Granularity,
    OtherGroup,
    Pages,
    Tombstone,
)
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.calls import axis_of_form
from attnfuzz.reference.features.classes import ROTARY_SHIFTS, ROTARY_THETAS
from attnfuzz.reference.features.moments import moments_of
from attnfuzz.reference.features.row import FeatureRow
from attnfuzz.reference.features.writes import rotary_shares
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.rope import Pairing, Rope, RopeScaling, RotaryShare
from attnfuzz.reference.shared_pools import may_share_pool
from attnfuzz.reference.validity import takes
from attnfuzz.strategies.choices import Choice, WeightedFlag, on
from attnfuzz.strategies.lean import Lean

_ALONE_OF = 3
"""Weight of a pool of one group, relative to each geometry of a second group."""

_TAILS = WeightedFlag(2, 1, ("window tail=yes",))


def draw_shared_pool(
    draw: DrawFn, can: Capability, geometry: Geometry, granularity: Granularity, pages: Pages, lean: Lean
) -> Pages:
    """Draw the tombstones of a layer with a window, and another group of layers in the pool, if `can` supports them."""
    if can.tombstones and geometry.window_left >= 0:
        pages = replace(pages, tombstone=draw(_tombstone(can.tombstones).under(lean)))
    if can.window_tail and pages.tombstone is not Tombstone.NONE and draw(_TAILS.under(lean)):
        return replace(pages, window_tail=True)
    groups = tuple(group for group in can.other_groups if may_share_pool(geometry, granularity, group))
    return replace(pages, other_group=draw(_other_group(groups).under(lean))) if groups else pages


@cache
def _tombstone(entries: tuple[Tombstone, ...]) -> Choice[Tombstone]:
    return Choice((Tombstone.NONE, *entries * 2), on("tombstones"))


@cache
def _other_group(groups: tuple[OtherGroup, ...]) -> Choice[OtherGroup]:
    return Choice((OtherGroup.NONE,) * _ALONE_OF * len(groups) + groups, on("other group"))


def draw_features(draw: DrawFn, case: Case, can: Capability, lean: Lean) -> Case:
    """Draw the features whose rows have the variants of a case to choose from."""
    for row in TABLE.rows:
        variants = row.draws(can, case) if row.draws else ()
        distinct = tuple(dict.fromkeys(variants))
        if len(distinct) > 1:
            likely = tuple(map(distinct.index, variants))
            shown = tuple(map(frozenset, map(partial(_shown_by, row), distinct)))
            case = distinct[draw(_variant(likely, shown).under(lean))]
    return case


def _shown_by(row: FeatureRow[Any], case: Case) -> Iterable[str]:
    """Return the features of a row that a case or a step of it has."""
    subjects: Iterable[Any] = moments_of(case) if row.of_steps else (case,)
    return (row.axis.feature(value) for subject in subjects for value in row.axis.place(subject))


@cache
def _variant(likely: tuple[int, ...], shown: tuple[frozenset[str], ...]) -> Choice[int]:
    return Choice(likely, shown.__getitem__)


# Of RoFormer, of Llama 3 and of Qwen 2.
_THETAS = Choice(
    (10000.0, 10000.0, 500000.0, 1e6), lambda theta: on("rotary theta", ROTARY_THETAS.of)(Rope(theta=theta))
)
_SHIFTS = Choice((0, 0, 0, 1, 100, 4000), lambda shift: on("rotary shift", ROTARY_SHIFTS.of)(Rope(shift=shift)))


def draw_rope(draw: DrawFn, can: Capability, lean: Lean) -> Rope | None:
    """Draw a rotary embedding that `can` supports, or None if it supports none."""
    if not can.rotary:
        return None
    return Rope(
        share=draw(_share(rotary_shares(can)).under(lean)),
        pairing=draw(_pairing(can.pairings).under(lean)),
        theta=draw(_THETAS.under(lean)),
        shift=draw(_SHIFTS.under(lean)),
        scaling=draw(_scaling(can.rope_scalings).under(lean)),
    )


@cache
def _share(shares: tuple[RotaryShare, ...]) -> Choice[RotaryShare]:
    return Choice(shares, on("rotary share"))


@cache
def _pairing(pairings: tuple[Pairing, ...]) -> Choice[Pairing]:
    return Choice(pairings, on("rotary pairing"))


@cache
def _scaling(scalings: tuple[RopeScaling, ...]) -> Choice[RopeScaling]:
    return Choice(scalings, on("rotary scaling"))


# A related run costs a second run of the kernels, but no second reference.
_RELATED = WeightedFlag(3, 1, tuple(f"relation={each.words}" for each in Relation))

# Few cases are replayed or cut into chunks, so these are drawn more often where they apply.
_RARE = (Relation.REPLAY_AS_EAGER, Relation.CHUNKS_CHANGED)
_TIMES_RARE = 4


def draw_relation(draw: DrawFn, case: Case, can: Capability, lean: Lean) -> Relation | None:
    """Draw a relation that applies to `case`, in a quarter of the cases. None applies to one that is not supported."""
    relations = applicable(case, can) if draw(_RELATED.under(lean)) else ()
    return draw(_one_of(relations).under(lean)) if relations else None


@cache
def _one_of(relations: tuple[Relation, ...]) -> Choice[Relation]:
    weighed = tuple(each for each in relations for _ in range(_TIMES_RARE if each in _RARE else 1))
    return Choice(weighed, lambda each: (f"relation={each.words}",))


def applicable(case: Case, capability: Capability) -> tuple[Relation, ...]:
    """Return the relations whose other case is possible and supported by `capability`, in the order of Relation.

    The present relation of `case` is ignored.
    """
    plain = replace(case, relation=None)
    if not capability.can_run(plain):
        return ()
    return tuple(relation for relation in Relation if capability.can_relate(replace(plain, relation=relation)))


_LIFE = "life"
# Several forms meet in a call, but one that is refused hides the others.
_FORMS, _USES = Choice((1, 1, 1, 2, 2, 3), lambda _: ()), Choice((1, 1, 2), lambda _: ())


def with_call(draw: DrawFn, case: Case, can: Capability, lean: Lean) -> Case:
    """Draw argument forms and the life of objects, among those that `can` supports."""
    forms = tuple(rule.form for rule in can.arguments if takes(case, rule.form))
    any_form = draw(_any_form(forms).under(lean)) if forms else False
    if any_form:
        for _ in range(draw(_FORMS.under(lean))):
            form = draw(_form(forms).under(lean))
            if form not in case.arguments and takes(case, form):
                case = replace(case, arguments=_ordered((*case.arguments, form)))
    any_use = draw(_any_use(can.earlier_uses).under(lean)) if can.earlier_uses else False
    if any_use:
        drawn = {draw(_use(can.earlier_uses).under(lean)) for _ in range(draw(_USES.under(lean)))}
        case = replace(case, life=tuple(use for use in EarlierUse if use in drawn))
    return case


def _ordered(forms: tuple[ArgumentForm, ...]) -> tuple[ArgumentForm, ...]:
    return tuple(form for form in ArgumentForm if form in forms)


def _shows(form: ArgumentForm) -> tuple[str, ...]:
    return (f"{axis_of_form(form)}={form}",)


@cache
def _any_form(forms: tuple[ArgumentForm, ...]) -> Choice[bool]:
    return WeightedFlag(1, 1, tuple(feature for form in forms for feature in _shows(form)))


@cache
def _form(forms: tuple[ArgumentForm, ...]) -> Choice[ArgumentForm]:
    return Choice(forms, _shows)


@cache
def _any_use(uses: tuple[EarlierUse, ...]) -> Choice[bool]:
    return WeightedFlag(1, 1, tuple(f"{_LIFE}={use}" for use in uses))


@cache
def _use(uses: tuple[EarlierUse, ...]) -> Choice[EarlierUse]:
    return Choice(uses, on(_LIFE))
