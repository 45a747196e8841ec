"""The right results of a recurrence by the arguments of its call, whose meaning `backend` documents."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import softplus

from attnfuzz.kernels.meaning import Breach
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP
from attnfuzz.reference.recurrent.case import StateMode, StateOp
from attnfuzz.reference.recurrent.noise import StateNoise
from attnfuzz.reference.recurrent.recurrence import StateTerms, Taps, convolve, recur

_SOURCE: Final = "attnfuzz.kernels.recurrent.backend: slots, has_initial_state"

OPS: Final[Mapping[str, tuple[StateMode, StateOp, StateNoise]]] = {
    op.name: (mode, backend.capability.op, backend.noise_model)
    for backend in NATIVE_STATES
    for mode, op in backend.by_mode.items()
}
"""The native recurrences: the mode of each op, and the errors of a correct one."""


_DUMMY: Final = 0
"""The slot that rows of no request may share."""


class NamesNoState(ValueError):
    """A call whose arguments name no state: outside of the pool, NaN that nothing has written, or that of two rows."""

    def __init__(self, argument: str, text: str, row: int) -> None:
        super().__init__(text)
        self.breach = Breach((argument,), text, _SOURCE, row)


@dataclass(frozen=True)
class AskedTensor:
    """The right contents of the argument `name`, in its shape and dtype, and float32 bounds on their errors."""

    name: str
    right: torch.Tensor
    bound: torch.Tensor


@dataclass(frozen=True)
class _Row:
    """Row `number`: its tokens, the slot that it reads, if it does, and those that it writes."""

    number: int
    tokens: slice
    read: int | None
    written: tuple[int, ...]


def asked_states(op: str, arguments: Mapping[str, Any], alpha: float) -> tuple[AskedTensor, AskedTensor]:
    """Return the outputs and the pool that a call of one of `OPS` asks for; a right kernel passes with 1 - `alpha`.

    Rows of no request may have any outputs, and slot 0 any state if several rows write it. Raises NamesNoState.
    """
    mode, kind, noise = OPS[op]
    pool, out = arguments["state"], arguments["out"]
    rows = list(_rows(arguments, mode))
    shared = {slot for slot, times in Counter(slot for row in rows for slot in row.written).items() if times > 1}
    for slot in sorted(shared - {_DUMMY}):
        first, second = [row.number for row in rows if slot in row.written][:2]
        text = f"rows {first} and {second} have slot {slot}, and their order is not determined"
        raise NamesNoState("slots", text, second)
    due = _Due(torch.zeros_like(out), torch.full(out.shape, torch.inf), pool.clone(), torch.zeros(pool.shape))
    count = sum(row.tokens.stop - row.tokens.start for row in rows) * pool.shape[1] * (1 + pool.shape[2])
    for row in rows:
        if kind is StateOp.CONV:
            _convolve(arguments, row, due, noise, verify=mode is StateMode.VERIFY, tail=_tail(count, 1, alpha))
        else:
            _recur(
                arguments, row, due, noise, verify=mode is StateMode.VERIFY, tail=_tail(count, pool.shape[-1], alpha)
            )
    for slot in shared:
        due.off[slot] = torch.inf
    return AskedTensor("out", due.right, due.most), AskedTensor("state", due.after, due.off)


class _Due(NamedTuple):
    """The right outputs and the pool after the call, each with bounds."""

    right: torch.Tensor
    most: torch.Tensor
    after: torch.Tensor
    off: torch.Tensor


def _recur(arguments: Mapping[str, Any], row: _Row, due: _Due, noise: StateNoise, *, verify: bool, tail: float) -> None:
    """Set the outputs and states of a row of a recurrence."""
    state = torch.zeros(due.after.shape[1:], dtype=torch.float64)
    if row.read is not None:
        state = _written(arguments["state"][row.read], row)
    answer = recur(_terms(arguments, row.tokens), state, noise, all_states=verify)
    due.right[row.tokens], due.most[row.tokens] = _bounded(answer.out, answer.out_error, due.right.dtype, tail)
    for at, slot in enumerate(row.written):
        due.after[slot], due.off[slot] = _bounded(answer.states[at], answer.state_errors[at], due.after.dtype, tail)


def _convolve(
    arguments: Mapping[str, Any], row: _Row, due: _Due, noise: StateNoise, *, verify: bool, tail: float
) -> None:
    """Set the outputs and the kept inputs of a row of a convolution, whose slot may have more columns than are kept."""
    weight, inputs = arguments["weight"], arguments["x"][row.tokens].T.to(due.after.dtype)
    before = weight.shape[1] - 1
    history = inputs.new_zeros(len(weight), before)
    if row.read is not None:
        first = max(int(arguments["num_accepted"][row.number]) - 1, 0) if verify else 0
        history = arguments["state"][row.read][:, first : first + before]
        _written(history, row)
    inputs = torch.cat((history, inputs), dim=1)
    out, error = convolve(Taps(weight, arguments["bias"], bool(arguments["activated"])), inputs, noise)
    due.right[row.tokens], due.most[row.tokens] = _bounded(out.T, error.T, due.right.dtype, tail)
    kept = inputs[:, 1:] if verify else inputs[:, inputs.shape[1] - before :]
    (slot,) = row.written
    due.after[slot, :, : kept.shape[1]] = kept
    due.off[slot, :, kept.shape[1] :] = torch.inf


def _written(state: torch.Tensor, row: _Row) -> torch.Tensor:
    """Return a state in fp64. Raises NamesNoState for NaN."""
    if not bool(torch.isfinite(state).all()):
        text = f"row {row.number} reads the state in slot {row.read}, which is not finite: it was never written"
        raise NamesNoState("has_initial_state", text, row.number)
    return state.double()


def _rows(arguments: Mapping[str, Any], mode: StateMode) -> Iterator[_Row]:
    """Yield the rows with tokens and a slot. A convolution's slot has all drafts, and stays where it is."""
    drafts = mode is StateMode.VERIFY and "draft_slots" in arguments
    names = ("draft_slots", "draft_targets") if drafts else ("slots", "target_slots")
    sources, targets = (arguments.get(name, arguments[names[0]]).tolist() for name in names)
    starts, slots = arguments["cu_seqlens"].tolist(), len(arguments["state"])
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        begin, end = starts[number], starts[number + 1]
        if drafts:
            read = source[max(int(arguments["num_accepted"][number]) - 1, 0)]
            written = tuple(target[: end - begin])
        else:
            continued = mode is StateMode.VERIFY or bool(arguments["has_initial_state"][number])
            read, written = source if continued else None, (target,)
        own = [each for each in (read, *written) if each is not None]
        if begin == end or min(own) < 0:
            continue
        if max(own) >= slots:
            text = f"row {number} has slot {max(own)}, and the pool has {slots}"
            raise NamesNoState("draft_slots" if drafts else "slots", text, number)
        yield _Row(number, slice(begin, end), read, written)


def _tail(count: int, width: int, alpha: float) -> float:
    """Return the largest of count * width errors over their standard deviation, with probability 1 - alpha."""
    return sqrt(2 * log(2 * max(count, 1) * width / alpha))


def _bounded(
    right: torch.Tensor, error: torch.Tensor, dtype: torch.dtype, tail: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round numbers, and return bounds on their errors from the mean squares of these."""
    rounded = right.to(dtype)
    bound = tail * error.sqrt() + ROUNDOFF[dtype] * right.abs() + SMALLEST_STEP[dtype]
    return rounded, ((1 + 2.0**-23) * (bound + (rounded.double() - right).abs())).float()


def _terms(arguments: Mapping[str, Any], tokens: slice) -> StateTerms:
    """Return the factors of the recurrence for some tokens, in fp64."""
    part = {name: arguments[name][tokens].double() for name in _BY_TOKEN if arguments.get(name) is not None}
    whole = {name: arguments[name].double() for name in _WEIGHTS if arguments.get(name) is not None}
    ssm = "dt" in part
    query, key, value = (part[name] for name in (("C", "B", "x") if ssm else ("query", "key", "value")))
    group = value.shape[1] // query.shape[1]
    if arguments.get("normed"):
        query, key = (each * (each.square().sum(-1, keepdim=True) + arguments["eps"]).rsqrt() for each in (query, key))
    beta, skip, step, rate = part.get("beta"), None, None, None
    if ssm:
        rate, step = whole["A"], softplus(part["dt"] + whole["dt_bias"], threshold=1e9)
        decay = rate * (step if rate.dim() == 1 else step.unsqueeze(-1))
        skip, step = whole["D"].unsqueeze(-1) * value, step.unsqueeze(-1)
        value = step * value
    elif "slope" in whole:
        decay = whole["slope"].expand(len(value), -1)
    elif "log_decay" in part:
        decay = part["log_decay"]
    else:
        rate, beta = whole["A_log"].exp(), part["b"].sigmoid()
        raw = softplus(part["a"] + whole["dt_bias"], threshold=1e9)
        decay = -(rate.unsqueeze(-1) if raw.dim() == 3 else rate) * raw
    return StateTerms(
        query=query.repeat_interleave(group, 1) * arguments.get("scale", 1.0),
        key=key.repeat_interleave(group, 1),
        value=value,
        log_decay=decay if decay.dim() == key.dim() else decay.unsqueeze(-1),
        beta=beta,
        skip=skip,
        gate=part.get("z"),
        rate=None if rate is None else rate if rate.dim() > 1 else rate.unsqueeze(-1),
        step=step,
    )


_BY_TOKEN: Final[Sequence[str]] = (
    *("query", "key", "value", "a", "b", "log_decay", "beta"),
    *("x", "dt", "B", "C", "z"),
)
_WEIGHTS: Final[Sequence[str]] = ("A_log", "dt_bias", "slope", "A", "D")
