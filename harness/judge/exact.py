"""T0: exact checks of shapes and dtypes, finite numbers, rows that see no key, and padded rows."""

from collections.abc import Iterator
from math import isfinite

import torch

from attnfuzz.harness.judge.evidence import Evidence, RealRows, Report
from attnfuzz.harness.memory.poison import unwritten
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.contract import Contract, Holds
from attnfuzz.reference.geometry import Geometry


def judge_exactly(evidence: Evidence) -> Iterator[Observation]:
    """Yield T0's observations of an output of the right shape."""
    contract, report = evidence.contract, evidence.report
    if not evidence.finite:
        yield from _not_numbers(evidence, evidence.out, "out")
    if evidence.lse is not None and not all_finite(evidence.lse):
        # -inf is the LSE of a row without keys. If the row has keys, it is a wrong number, not a missing one.
        others = torch.where(evidence.lse == -torch.inf, 0.0, evidence.lse)
        yield from _not_numbers(evidence, others, "lse")
    elif evidence.lse is None and contract.lse is not None and evidence.rows.tokens:
        message = f"no LSE was returned, but the contract promises one in base {contract.lse}"
        yield report(kind=Kind.LSE_MISMATCH, place="lse", tier=Tier.T0, message=message)
    yield from _empty_rows(evidence)
    yield from padded_rows(evidence.padded, contract, report)


def misshapen(output: Output, rows: RealRows, geometry: Geometry, report: Report) -> Observation | None:
    """Return the failure that makes the output impossible to judge (its shape, dtype, or too few rows), or None."""
    out, lse = output.out, output.lse
    heads, dim = geometry.q_heads, geometry.head_dim_vo
    if output.attended:
        heads, dim = output.attended[0].query.shape[1], output.attended[0].value.shape[2]
    elif geometry.latent is not None and out.shape[-1] == geometry.latent.vo:
        # A prefill without requests.
        dim = geometry.latent.vo
    wanted = geometry.dtype.torch_dtype
    if out.dim() != 3 or tuple(out.shape[1:]) != (heads, dim) or out.dtype != wanted:
        message = f"out is {_form(out)}, expected {wanted} [rows, {heads}, {dim}]"
    elif out.shape[0] < rows.last:
        message = f"out has {out.shape[0]} rows, but the requests' last row is {rows.last - 1}"
    elif lse is not None and (lse.shape != out.shape[:2] or lse.dtype != torch.float32):
        message = f"lse is {_form(lse)}, expected torch.float32 {list(out.shape[:2])}"
        return report(kind=Kind.LSE_MISMATCH, place="lse", tier=Tier.T0, message=message)
    else:
        return None
    return report(kind=Kind.OUTPUT_MISMATCH, place="out", tier=Tier.T0, message=message)


def lse_without_keys(evidence: Evidence) -> Iterator[Observation]:
    """Report rows that see a key but have the LSE of a row without keys."""
    if evidence.lse is None:
        return
    wrong = (evidence.lse == -torch.inf) & evidence.sees.unsqueeze(-1)
    if wrong.any():
        token, head = wrong.nonzero()[0].tolist()
        row = evidence.rows.address(token, head)
        due = evidence.budget.answer.lse[token, head].item() / evidence.lse_unit
        message = (
            f"{evidence.rows.name(row)}: lse -inf, as for a row without keys, instead of {due:.8g} "
            f"(base {evidence.contract.lse}); {_share(wrong, evidence.sees)}"
        )
        yield evidence.report(kind=Kind.LSE_MISMATCH, place="lse", tier=Tier.T0, row=row, message=message)


def _not_numbers(evidence: Evidence, tensor: torch.Tensor, place: str) -> Iterator[Observation]:
    """Report NaN or infinity in rows [T, Hq, ...] that see a key, as never written or as computed."""
    sees = evidence.sees
    bad = ~torch.isfinite(tensor) & sees.view(-1, *[1] * (tensor.dim() - 1))
    if not bad.any():
        return
    stale = bad & unwritten(tensor)
    for kind, mask, state in ((Kind.UNWRITTEN, stale, "never written"), (Kind.NOT_FINITE, bad & ~stale, "not finite")):
        if mask.any():
            by_row = mask.flatten(2).any(dim=-1) if tensor.dim() == 3 else mask
            token, head = by_row.nonzero()[0].tolist()
            value = tensor[token, head].flatten()[mask[token, head].flatten()][0].item()
            held = "the sentinel" if kind is Kind.UNWRITTEN else f"{value}"
            row = evidence.rows.address(token, head)
            message = f"{place} of {evidence.rows.name(row)} was {state}: it holds {held}; {_share(by_row, sees)}"
            yield evidence.report(kind=kind, place=place, tier=Tier.T0, row=row, message=message)


def _empty_rows(evidence: Evidence) -> Iterator[Observation]:
    """Report rows that see no key and break the contract. The strictest contract demands out = 0 and lse = -inf.

    In either base, only whether the LSE is -inf or finite matters, except with sinks: then the expected one is finite,
    and the LSE's own tier compares it.
    """
    out, lse, sees, contract = evidence.out, evidence.lse, evidence.sees, evidence.contract
    if contract.empty_rows is Holds.ANYTHING or evidence.all_see:
        return
    if contract.empty_rows is Holds.ZERO:
        wrong = (out != 0).any(dim=-1)
        if lse is not None:
            wrong |= torch.where(evidence.budget.answer.lse == -torch.inf, lse != -torch.inf, ~torch.isfinite(lse))
    else:
        wrong = ~torch.isfinite(out).all(dim=-1)
        if lse is not None:
            wrong |= torch.isnan(lse) | (lse == torch.inf)
    wrong &= ~sees.unsqueeze(-1)
    if not wrong.any():
        return
    token, head = wrong.nonzero()[0].tolist()
    held = f"out[0] = {_held(out[token, head, :1])}"
    if lse is not None:
        held += f", lse = {_held(lse[token, head].view(1))}"
    row, due = evidence.rows.address(token, head), _due_without_keys(evidence, token, head)
    message = f"{evidence.rows.name(row)} sees no key and must hold {due}, but holds {held}; {_share(wrong, ~sees)}"
    yield evidence.report(kind=Kind.EMPTY_ROW, place="empty rows", tier=Tier.T0, row=row, message=message)


def _due_without_keys(evidence: Evidence, token: int, head: int) -> str:
    """Return the contents that the contract demands of a row that sees no key, in words."""
    zero = evidence.contract.empty_rows is Holds.ZERO
    out = "out = 0" if zero else "finite numbers in out"
    if evidence.lse is None:
        return out
    if not zero:
        return f"{out}, and a finite number or -inf in lse"
    lse = evidence.budget.answer.lse[token, head].item() / evidence.lse_unit
    return f"{out}, lse = {lse:.8g}" + (f" (that of its sink, base {evidence.contract.lse})" if isfinite(lse) else "")


def padded_rows(padded: torch.Tensor, contract: Contract, report: Report) -> Iterator[Observation]:
    """Report rows of no request, [padded rows, Hq, Dv], that break the contract."""
    if contract.padded_rows is Holds.ANYTHING or not padded.numel():
        return
    zero = contract.padded_rows is Holds.ZERO
    if not zero and all_finite(padded):
        return
    bad = padded != 0 if zero else ~torch.isfinite(padded)
    if not bad.any():
        return
    stale = bad & unwritten(padded)
    infinite = ~torch.isfinite(padded) & ~stale
    leaked = bad & ~stale & ~infinite
    for kind, mask, fault in (
        (Kind.UNWRITTEN, stale, "were never written"),
        (Kind.NOT_FINITE, infinite, "hold NaN or infinity"),
        (Kind.PADDING_LEAK, leaked, "hold numbers other than 0"),
    ):
        count = int(mask.flatten(1).any(dim=-1).sum())
        if count:
            message = f"{count} of {padded.shape[0]} padded rows {fault}"
            yield report(kind=kind, place="padded rows", tier=Tier.T0, message=message)


def all_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of up to fp32 is finite: its fp64 sum can't overflow, and propagates NaN and infinity."""
    return isfinite(tensor.sum(dtype=torch.float64).item())


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _held(element: torch.Tensor) -> str:
    return "never written" if bool(unwritten(element).any()) else f"{element.item()}"


def _share(wrong: torch.Tensor, of: torch.Tensor) -> str:
    """Describe how many rows are wrong, of the tokens in `of` [T]."""
    return f"{int(wrong.sum())} of {int(of.sum()) * wrong.shape[1]} such rows"
