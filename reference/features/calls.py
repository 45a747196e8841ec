"""Features of the calls of kernels: their arguments, the earlier uses of objects, and a related second run."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.edits import removals
from attnfuzz.reference.edits.removals import case_with
from attnfuzz.reference.features.classes import MAXIMA
from attnfuzz.reference.features.row import Axis, FeatureRow, but, classed, grouped, of_case, only, removable, single
from attnfuzz.reference.relation import Relation

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

_TENSOR_ARGUMENTS, _OTHER_ARGUMENTS = "tensor argument", "other argument"


def axis_of_form(form: ArgumentForm) -> str:
    """Return the name of the axis of an argument form."""
    return _TENSOR_ARGUMENTS if form.of_tensor else _OTHER_ARGUMENTS


def _arguments(name: str) -> FeatureRow[Case]:
    """Return the row of argument forms: those of tensors, or all others."""

    def forms_in(forms: Iterable[ArgumentForm]) -> tuple[ArgumentForm, ...]:
        return tuple(form for form in forms if axis_of_form(form) == name)

    def refusal(can: "Capability", case: Case) -> str | None:
        known = {rule.form for rule in can.arguments}
        return next((f"calls with {form}" for form in forms_in(case.arguments) if form not in known), None)

    forms = forms_in(ArgumentForm)
    axis: Axis[Case] = Axis(name, ("plain", *forms), lambda case: forms_in(case.arguments) or ("plain",))
    return of_case(
        axis,
        "arguments",
        *(removable(form.value, only(form), removals.without(arguments=form)) for form in forms),
        filed={"argument forms": but("plain")},
        supported=lambda can: ("plain", *forms_in(rule.form for rule in can.arguments)),
        lack="the backend's arguments are not passed so",
        refusal=refusal,
        printed=lambda case: ", ".join(forms_in(case.arguments)),
        optional=("other forms of arguments", lambda can: can.arguments) if name == _TENSOR_ARGUMENTS else None,
    )


def _relation(case: Case) -> str:
    return "none" if case.relation is None else case.relation.words


def _relations(can: "Capability") -> Iterable[str]:
    if can.writes or can.schedules:
        return ("none",)
    possible = {
        Relation.PADDING_ENLARGED: can.padding,
        Relation.REPLAY_AS_EAGER: bool(can.capturable),
        Relation.CHUNKS_CHANGED: can.latent and Mode.CHUNKED_PREFILL in can.modes,
    }
    return ("none", *(each.words for each in Relation if possible.get(each, True)))


def _refused_relation(can: "Capability", case: Case) -> str | None:
    if case.relation is None or not (can.writes or can.schedules):
        return None
    return (
        "relations, which compare two attentions" if can.writes else "relations between forwards that it chooses itself"
    )


FORMS = grouped("argument forms", _arguments(_TENSOR_ARGUMENTS), _arguments(_OTHER_ARGUMENTS), line="call")

LIVES = grouped(
    "earlier uses",
    of_case(
        Axis("life", ("new", *EarlierUse), lambda case: case.life or ("new",)),
        "life",
        *(removable(use.value, only(use), removals.without(life=use)) for use in EarlierUse),
        filed={"life": but("new")},
        formerly={"life": "earlier uses"},
        supported=lambda can: ("new", *can.earlier_uses),
        lack="the backend has no such object",
        refusal=lambda can, case: next((f"calls with {use}" for use in case.life if use not in can.earlier_uses), None),
        printed=lambda case: ", ".join(case.life),
        optional=("earlier uses", lambda can: None if can.writes else can.earlier_uses),
    ),
    line="before",
)

CALLS = (
    *grouped(
        "stated sizes",
        of_case(
            classed("stated maxima", MAXIMA, lambda case: case.max_len_slack),
            "max_len_slack",
            removable("stated maxima", but("exact"), case_with(max_len_slack=0)),
            filed={"max slack": but("exact")},
            formerly={"max slack": "stated maxima"},
        ),
        line="memory",
    ),
    *FORMS,
    *LIVES,
    *grouped(
        "second run",
        of_case(
            single("relation", ("none", *(each.words for each in Relation)), _relation),
            "relation",
            removable("relation", but("none"), removals.no_relation),
            formerly={each.words: f"relation={each.words}" for each in Relation},
            supported=_relations,
            lack="the backend can't run this second case",
            refusal=_refused_relation,
            printed=lambda case: f"compared with a second run: {case.relation.words}" if case.relation else "",
            line="relation",
        ),
    ),
)
