"""Features of the calls of kernels: their arguments, the earlier uses of objects, and a related second run."""

from collections.abc import Iterable

from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import Case
from attnfuzz.reference.edits import removals
from attnfuzz.reference.edits.removals import case_with
from attnfuzz.reference.features.classes import MAXIMA
from attnfuzz.reference.features.row import Axis, FeatureRow, but, classed, grouped, of_case, only, removable, single
from attnfuzz.reference.relation import Relation

_TENSOR_ARGUMENTS, _OTHER_ARGUMENTS = "tensor argument", "other argument"


def axis_of_form(form: ArgumentForm) -> str:
    """Return the name of the axis of an argument form."""
    return _TENSOR_ARGUMENTS if form.of_tensor else _OTHER_ARGUMENTS


def _arguments(name: str) -> FeatureRow[Case]:
    """Return the row of argument forms: those of tensors, or all others."""

    def forms_in(forms: Iterable[ArgumentForm]) -> tuple[ArgumentForm, ...]:
        return tuple(form for form in forms if axis_of_form(form) == name)

    forms = forms_in(ArgumentForm)
    axis: Axis[Case] = Axis(name, ("plain", *forms), lambda case: forms_in(case.arguments) or ("plain",))
    return of_case(
        axis,
        "arguments",
        *(removable(form.value, only(form), removals.without(arguments=form)) for form in forms),
        filed={"argument forms": but("plain")},
    )


def _relation(case: Case) -> str:
    return "none" if case.relation is None else case.relation.words


FORMS = grouped("argument forms", _arguments(_TENSOR_ARGUMENTS), _arguments(_OTHER_ARGUMENTS))

LIVES = grouped(
    "earlier uses",
    of_case(
        Axis("life", ("new", *EarlierUse), lambda case: case.life or ("new",)),
        "life",
        *(removable(use.value, only(use), removals.without(life=use)) for use in EarlierUse),
        filed={"life": but("new")},
        formerly={"life": "earlier uses"},
    ),
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
        ),
    ),
)
