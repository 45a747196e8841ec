"""A batch of decodes on a backend, in a worker, and the smallest errors in its output that are found."""

from dataclasses import fields, replace
from typing import Any

import msgspec
import torch
from decode_batch import DecodeBatch
from planted_errors import IN_MANY_ROWS, IN_ONE_ROW, ErrorKind
from sensitivity import smallest

from attnfuzz.harness.calibrate.margins import largest_margins
from attnfuzz.harness.calibrate.sample import CannotCalibrate, plain_geometry, samples_of
from attnfuzz.harness.inside.execute import backend_of
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.judge import alpha_of_tier
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.case import Case, Mode, Request, Step, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF
from attnfuzz.reference.problem import Answer, Moments, Problem
from attnfuzz.reference.validity import ImpossibleCase, validate

REQUESTS = 4
_VALUES, _DROPPED, *_ = IN_ONE_ROW
_FACTOR, _LSE = IN_MANY_ROWS[1:]
KINDS: dict[str, tuple[ValueFamily, ErrorKind]] = {
    "wrong values": (ValueFamily.NORMAL, _VALUES),
    "dropped": (ValueFamily.NORMAL, _DROPPED),
    "dropped, probe": (ValueFamily.PROBE, _DROPPED),
    "out x (1 + x)": (ValueFamily.NORMAL, _FACTOR),
    "lse + x": (ValueFamily.NORMAL, _LSE),
}
"""The errors to plant, each with the family of values in which it is planted, by the column's name."""


class SensitivityRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A backend and dtype to measure, in decodes of `length` keys. Each error is planted in `trials` trials."""

    backend: str
    dtype: DType
    length: int
    trials: int
    seed: int


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size found of each kind, None if not even the largest is; or the `reason` why there is none."""

    reason: str = ""
    rows: int = 0
    noise: str = ""
    smallest: dict[str, float | None] = {}


def handle(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded SensitivityRequest with an encoded Sensitivity."""
    del journal
    torch.set_num_threads(1)
    return msgspec.msgpack.encode(_measured(msgspec.msgpack.decode(request, type=SensitivityRequest)))


def _measured(asked: SensitivityRequest) -> Sensitivity:
    backend = backend_of(asked.backend)
    try:
        batches = {family: _run(asked, backend, family) for family in (ValueFamily.NORMAL, ValueFamily.PROBE)}
    except CannotCalibrate as error:
        return Sensitivity(reason=str(error))
    first = batches[ValueFamily.NORMAL]
    return Sensitivity(
        rows=first.out.shape[0] * first.out.shape[1],
        noise=backend.noise(asked.dtype).origin.value,
        smallest={
            column: smallest(kind, batches[family], batches[family].judges()["all"], asked.trials)
            for column, (family, kind) in KINDS.items()
            if kind is not _LSE or first.lse is not None
        },
    )


def batch_case(asked: SensitivityRequest, backend: Backend, family: ValueFamily) -> Case:
    """Return a case with one query of each request, a decode if the backend has decodes. Raises CannotCalibrate."""
    can = backend.capability
    geometry = plain_geometry(can, asked.dtype)
    if geometry is None:
        raise CannotCalibrate("it has a window in every geometry")
    requests = tuple(Request(slot=slot, q_len=1, kv_len=asked.length) for slot in range(REQUESTS))
    for mode in sorted(can.modes, key=lambda mode: mode is not Mode.DECODE):
        for tokens in (1, 0):
            step = Step(mode=mode, requests=requests, padded_tokens=REQUESTS, tokens_per_request=tokens)
            case = Case(backend=asked.backend, geometry=geometry, steps=(step,), values=family, seed=asked.seed)
            try:
                validate(case)
            except ImpossibleCase:
                continue
            if can.why_not(case) is None:
                return case
    raise CannotCalibrate(f"it supports no step of {REQUESTS} requests with one query and {asked.length} keys each")


def _run(asked: SensitivityRequest, backend: Backend, family: ValueFamily) -> DecodeBatch:
    """Run a batch. Raises CannotCalibrate if there is none, or if its output fails."""
    samples = samples_of(batch_case(asked, backend, family), backend, backend.noise(asked.dtype))
    if not samples:
        raise CannotCalibrate("it does not support the case")
    evidence = on_host(samples[0].evidence)
    evidence = replace(evidence, budget=replace(evidence.budget, alpha=alpha_of_tier(ALPHA)))
    margins = dict(largest_margins(evidence))
    failing = [f"{tier} {margin:.3g}" for tier, margin in margins.items() if not margin <= 1]
    if failing:
        raise CannotCalibrate(f"its own output fails: {', '.join(failing)}")
    unrounded = before_rounding(evidence.out, evidence.budget.answer.out)
    return DecodeBatch(asked.length, evidence, unrounded, tuple(tier for tier in Tier if tier in margins))


def on_host(part: Any) -> Any:
    """Return evidence with all of its tensors on the host: many keys stay on the GPU (`inside.places.on_host`)."""
    held = {field.name: getattr(part, field.name) for field in fields(part)}
    moved = {name: each.cpu() for name, each in held.items() if isinstance(each, torch.Tensor)}
    parts = {
        name: on_host(each) for name, each in held.items() if isinstance(each, (ErrorBudget, Problem, Answer, Moments))
    }
    return replace(part, **moved, **parts)


def before_rounding(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the numbers nearest to the `exact` ones, fp64, that are rounded to `out`: a kernel's own are not known."""
    rounded = out.double()
    _, exponent = torch.frexp(rounded)
    half = torch.ldexp(torch.full_like(rounded, ROUNDOFF[out.dtype] / 2), exponent)
    return torch.minimum(torch.maximum(exact, rounded - half), rounded + half)
