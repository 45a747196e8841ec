"""What it says of a failure that it changes or goes away when the case is run in another way."""

from collections.abc import Callable, Iterator, Sequence

from attnfuzz.harness.triage.repeats import Repeated
from attnfuzz.harness.triage.result import Repetition, Variant, VariantOutcome
from attnfuzz.harness.verdict.failures import FAULTS


def contrasts(runs: Repeated, variants: Sequence[Variant]) -> Iterator[str]:
    """A sentence for each variation that makes a difference; none where chance may have made it."""
    given = runs.outcome
    by_chance = runs.repetition in (Repetition.RACING, Repetition.HISTORY) or not given.failed
    for what, say in _SAYINGS.items():
        if by_chance and what != "backend":
            continue
        of_this = [variant for variant in variants if variant.what == what and variant.outcome.runs]
        other = [variant for variant in of_this if variant.outcome.kind is not given.kind]
        if other:
            yield say(given, other, of_this)


def _of_guards(given: VariantOutcome, other: Sequence[Variant], _: Sequence[Variant]) -> str:
    side = other[0].value
    if given.kind in FAULTS:
        return f"With the guards on the {side} {_ends(other[0])}: the stray access is seen on one side only."
    return f"With the guards on the {side} {_ends(other[0])}: the result depends on what lies beside a tensor."


def _of_outputs(_: VariantOutcome, other: Sequence[Variant], __: Sequence[Variant]) -> str:
    return f"With outputs that begin {other[0].value} {_ends(other[0])}: the result depends on what out held before."


def _of_workspaces(_: VariantOutcome, other: Sequence[Variant], __: Sequence[Variant]) -> str:
    states = " and ".join(f"{variant.value} it {_verb(variant)}" for variant in other)
    return f"With a workspace that is {states}: the result depends on what the workspace held before."


def _of_launches(_: VariantOutcome, other: Sequence[Variant], __: Sequence[Variant]) -> str:
    if other[0].value == "eager":
        return f"Launched eagerly {_ends(other[0])}: it depends on what a graph freezes or does not refresh."
    return f"Captured in a graph and replayed {_ends(other[0])}: a replay is planned otherwise."


def _of_steps(_: VariantOutcome, other: Sequence[Variant], __: Sequence[Variant]) -> str:
    return f"{other[0].value.capitalize()} {_ends(other[0]).removeprefix('it ')}: it depends on what ran before."


def _of_contents(_: VariantOutcome, other: Sequence[Variant], tried: Sequence[Variant]) -> str:
    return f"With other contents it ends otherwise in {len(other)} of {len(tried)}: it depends on values."


def _of_backends(_: VariantOutcome, other: Sequence[Variant], __: Sequence[Variant]) -> str:
    return f"The whole case on {other[0].value} {_verb(other[0])}."


def _ends(variant: Variant) -> str:
    return f"it {_verb(variant)}"


def _verb(variant: Variant) -> str:
    outcome = variant.outcome
    return "passes" if outcome.passes else f"ends with {outcome.kind}"


_SAYINGS: dict[str, Callable[[VariantOutcome, Sequence[Variant], Sequence[Variant]], str]] = {
    "guard": _of_guards,
    "outputs": _of_outputs,
    "workspace": _of_workspaces,
    "launch": _of_launches,
    "steps": _of_steps,
    "contents": _of_contents,
    "backend": _of_backends,
}
