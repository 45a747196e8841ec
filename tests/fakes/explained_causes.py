"""Stands for kernels and for attribution: kernels that are functions of a case, and causes that explain one."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.ablation import FEATURES
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.predictions import attribute_case
from attnfuzz.harness.verdict.failures import Access, Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Mode

Faulty = Callable[[Case], Sequence[tuple[Kind, str]]]
"""A kernel: the kinds of its failures on a case, with their places."""

Errs = Callable[[Case], float | Access | None]
"""The error of a kernel's failures on a case: over the bound, or the stray access."""


def judged(faulty: Faulty, case: Case, errs: Errs = lambda _: None) -> Verdict:
    mode = case.steps[-1].mode
    kernel = "decode" if mode in (Mode.DECODE, Mode.TARGET_VERIFY) else "context"
    kernel = kernel if case.backend == "fake" else f"{case.backend} {kernel}"
    error = errs(case)
    seen = {"access": error} if isinstance(error, Access) else {"margin": error}
    return Verdict(
        observations=tuple(
            Observation(kind=kind, place=place, message="wrong", step=0, mode=mode.value, kernel=kernel, **seen)
            for kind, place in faulty(case)
        )
    )


def explained(
    faulty: Faulty,
    failing: Case,
    known: Case,
    needs: tuple[str, ...],
    *,
    beside: tuple[KnownCause, ...] = (),
    shown_as: tuple[Fingerprint, ...] = (),
    errs: Errs = lambda _: None,
    allowed: Callable[[Case], bool] = lambda _: True,
    ablated: bool = True,
    failing_needs: tuple[str, ...] = (),
    refuses: Callable[[Case], bool] = lambda _: False,
) -> bool:
    """Whether the cause of how `known` fails, which needs these features, explains how `failing` fails.

    Unless the cause is `ablated`, its needs are not known. The failure needs the features `failing_needs`. The backend
    answers Unsupported to cases that it `refuses`.
    """
    first, other = judged(faulty, known, errs), judged(faulty, failing, errs)
    cause = KnownCause(
        name="known",
        case=known,
        fingerprint=Fingerprint.of(known.backend, first.failures[0]),
        needs=needs,
        ablated=ablated,
        shown_as=shown_as,
    )
    pinned = Pinned(
        Fingerprint.of(failing.backend, other.failures[0]),
        failing,
        other,
        run=lambda case: Verdict(unsupported="refused") if refuses(case) else judged(faulty, case, errs),
        budget=ShrinkBudget(runs=500, seconds=60),
        aside=lambda _case, _verdict: None,
    )
    needed = [FEATURES[name] for name in failing_needs]
    return attribute_case(pinned, (cause,), allowed, needed=needed, beside=beside)[0] is not None


def lengths(case: Case) -> list[tuple[int, int]]:
    return [(each.q_len, each.kv_len) for each in case.steps[-1].requests]


def one_request(mode: Mode, q_len: int, kv_len: int, **features: object) -> Case:
    whole = mode in (Mode.DECODE, Mode.TARGET_VERIFY)
    (only,) = (step(mode, (q_len, kv_len), stride=q_len if whole else 0),)
    return Case(backend="fake", geometry=replace(HEADS, **features), steps=(only,))


def padded(case: Case) -> bool:
    return any(each.padded for each in case.steps)
