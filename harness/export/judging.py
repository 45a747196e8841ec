"""The values of a script's judging template: the limits as expressions, and the demands of the contract."""

from typing import Any, NamedTuple

import torch

from attnfuzz.harness.export.body import ScriptContents
from attnfuzz.harness.export.limits import LimitForm, ScriptLimits, limits_of
from attnfuzz.harness.verdict.failures import DAMAGES, Kind, Observation
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.contract import LseBase
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP


class _Rendered(NamedTuple):
    """`ScriptLimits` with expressions in the place of tensors."""

    form: str
    place: str
    numbers: str = ""
    allowed: str = ""
    statistics: tuple[dict[str, str], ...] = ()


def judging_of(
    calls: CallCase,
    backend: Backend,
    seen: Observation | None,
    contents: ScriptContents,
    *,
    tolerated: tuple[float, float] | None,
) -> dict[str, Any]:
    """Return the values of the template for calls with an answer; `contents` gets the limits.

    With `tolerated` errors, relative and absolute, there are no other limits than these and the exact ones.
    """
    assert calls.answer is not None
    contract = backend.contract
    if seen is not None and seen.kind in DAMAGES:
        limits: list[_Rendered] = []
    elif tolerated is not None and (seen is None or seen.tier != Tier.T0):
        limits = [_Rendered(LimitForm.BOUND, "out"), _Rendered(LimitForm.BOUND, "lse")]
    else:
        found = limits_of(calls, backend, seen)
        limits = [_rendered(each, contents) for each in found]
    dtype = next(each.dtype for each in calls.buffers if each.name == calls.answer.out.buffer)
    dtype = calls.answer.out.dtype or dtype
    return {
        "limits": limits,
        "forms": sorted({each.form for each in limits}),
        "tolerance": tolerated if "bound" in {each.form for each in limits} else None,
        "masked": any(each.mask is not None for each in calls.answer.requests),
        "lse_base": 2 if contract.lse is LseBase.TWO else "e",
        "unwritten": seen is not None and seen.kind is Kind.UNWRITTEN,
        "empty_rows": contract.empty_rows.value,
        "padded_rows": contract.padded_rows.value,
        "roundoff": ROUNDOFF[dtype.torch_dtype],
        "smallest": SMALLEST_STEP[dtype.torch_dtype],
    }


def _rendered(limits: ScriptLimits, contents: ScriptContents) -> _Rendered:
    key = f"limits of {limits.place}"

    def written(tensor: torch.Tensor | None, name: str) -> str:
        return "" if tensor is None else contents.numbers(tensor, name)

    return _Rendered(
        form=limits.form.value,
        place=limits.place,
        numbers=written(limits.numbers, key),
        allowed=repr(limits.most) if limits.form is LimitForm.COMMON else written(limits.allowed, f"{key}, of rows"),
        statistics=tuple(
            {
                "name": each.name,
                "shared": written(each.shared, f"{each.name} that rows share"),
                "recurring": repr(each.recurring),
                "groups": written(each.groups, f"rows of one {each.name}"),
            }
            for each in limits.statistics
        ),
    )
