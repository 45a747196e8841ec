"""The forms of a call's arguments, and the earlier uses of the objects that make it."""

from functools import cache

from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from attnfuzz.reference.arguments import OF_TENSORS, ArgumentForm, Event
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.validity import takes
from attnfuzz.strategies.choices import Choice, WeightedFlag, on
from attnfuzz.strategies.lean import Lean

TENSORS, OPTIONS, LIFE = "tensor argument", "other argument", "life"
"""The axes of coverage."""

# Several forms meet in a call, but one that is refused hides what the others do.
_FORMS, _EVENTS = Choice((1, 1, 1, 2, 2, 3), lambda _: ()), Choice((1, 1, 2), lambda _: ())


def axis_of_form(form: ArgumentForm) -> str:
    """The axis of coverage on which a form lies."""
    return TENSORS if form in OF_TENSORS else OPTIONS


def with_call(draw: DrawFn, case: Case, can: Capability, lean: Lean) -> Case:
    """Draw the forms of arguments, and the life of objects, that `can` covers."""
    forms = tuple(rule.form for rule in can.arguments if takes(case, rule.form))
    any_form = draw(_any_form(forms).under(lean)) if forms else False
    if any_form:
        for _ in range(draw(_FORMS.under(lean))):
            form = draw(_form(forms).under(lean))
            if form not in case.arguments and takes(case, form):
                case = replace(case, arguments=_ordered((*case.arguments, form)))
    any_event = draw(_any_event(can.events).under(lean)) if can.events else False
    if any_event:
        drawn = {draw(_event(can.events).under(lean)) for _ in range(draw(_EVENTS.under(lean)))}
        case = replace(case, life=tuple(event for event in Event if event in drawn))
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
def _any_event(events: tuple[Event, ...]) -> Choice[bool]:
    return WeightedFlag(1, 1, tuple(f"{LIFE}={event}" for event in events))


@cache
def _event(events: tuple[Event, ...]) -> Choice[Event]:
    return Choice(events, on(LIFE))
