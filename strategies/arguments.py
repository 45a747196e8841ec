"""Drawing argument forms, and the earlier uses of the objects that make a call."""

from functools import cache

from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.validity import takes
from attnfuzz.strategies.choices import Choice, WeightedFlag, on
from attnfuzz.strategies.coverage.axis import axis_of_form
from attnfuzz.strategies.lean import Lean

_LIFE = "life"
# A call may have several forms, but a refused one hides the others.
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
