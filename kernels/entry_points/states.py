"""Entry points on attention states, (out, LSE) of each row: merging two, and repairing rows without keys."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.entry_points.duties import judged
from attnfuzz.kernels.entry_points.duties.fit import sizes
from attnfuzz.kernels.entry_points.duties.outputs import in_place
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.meaning.entry_point import Arguments, Breach, Parameter, RequestSpan, Role, and_others
from attnfuzz.kernels.meaning.forms import Form, described, parameters_of
from attnfuzz.kernels.meaning.spans import integers

_LSE = "FlashInfer docstrings of s and s_other: expected to be a float32 tensor"
_VALUES = "FlashInfer, cascade.cu: one dtype is dispatched for both values"
_MASK = "FlashInfer docstring of mask: the boolean mask tensor"
_FIXUP = "attnfuzz.kernels.planning.fixup"


def merge_breaches(
    arguments: Arguments, parameters: tuple[Parameter, ...], states: Sequence[tuple[str, str]]
) -> Iterator[Breach]:
    """Yield the breaches of a merge of two `states`, (values, LSE) by their names."""
    yield from sizes(arguments, parameters)
    (first, _), (second, _) = states
    if arguments[first].dtype != arguments[second].dtype:
        text = f"{second} is {described(arguments[second])}, {first} is {described(arguments[first])}"
        yield Breach((first, second), text, _VALUES)
    for _, lse in states:
        if arguments[lse].dtype is not torch.float32:
            text = f"{lse} is {described(arguments[lse])}, but must be float32: a converted copy is merged instead"
            yield Breach((lse,), text, _LSE)
    mask = arguments.get("mask")
    if isinstance(mask, torch.Tensor) and mask.dtype not in (torch.bool, torch.uint8):
        yield Breach(("mask",), f"mask is {described(mask)}, but must be bool", _MASK)
    yield from in_place(arguments, parameters)


def fixup_breaches(arguments: Arguments, parameters: tuple[Parameter, ...]) -> Iterator[Breach]:
    """Yield the breaches of a fixup: rejected arguments, offsets beyond the rows, rows beyond the stated maximum."""
    out, kv_lens, cumulative = (arguments[name] for name in ("out", "kv_lens", "cum_seq_lens"))
    for name, tensor in (("kv_lens", kv_lens), ("cum_seq_lens", cumulative)):
        if tensor.dtype is not torch.int32:
            yield Breach((name,), f"{name} is {described(tensor)}, but must be int32", _FIXUP)
    if cumulative.shape[0] != kv_lens.shape[0] + 1:
        text = f"cum_seq_lens has {cumulative.shape[0]} entries, one more than the {kv_lens.shape[0]} of kv_lens is due"
        yield Breach(("cum_seq_lens", "kv_lens"), text, _FIXUP)
        return
    ends = integers(cumulative)
    outside = [b for b in range(len(ends) - 1) if not 0 <= ends[b] <= ends[b + 1] <= out.shape[0]]
    if outside:
        at = outside[0]
        text = (
            f"cum_seq_lens puts request {at} between rows {ends[at]} and {ends[at + 1]} of out, which has "
            f"{out.shape[0]}{and_others(outside)}"
        )
        yield Breach(("cum_seq_lens", "out"), text, _FIXUP, at)
    longest, empty = arguments["max_seq_len"], [b for b, length in enumerate(integers(kv_lens)) if length == 0]
    long = [b for b in empty if ends[b + 1] - ends[b] > longest]
    if long:
        text = (
            f"request {long[0]} has no keys and {ends[long[0] + 1] - ends[long[0]]} rows, but max_seq_len is {longest}"
            f"{and_others(long)}: the others of its rows stay as they are"
        )
        yield Breach(("max_seq_len", "cum_seq_lens"), text, _FIXUP, long[0])
    yield from sizes(arguments, parameters)
    yield from in_place(arguments, parameters)


_VALUE_AXES = (("tokens", "q heads", "vo dim"),)
_LSE_AXES = (("tokens", "q heads"),)
_FIXUP_FORMS = {
    "out": Form(Role.OUT, _VALUE_AXES),
    "lse": Form(Role.LSE, _LSE_AXES),
    "kv_lens": Form(Role.KV_LENGTHS, (("requests",),)),
    "cum_seq_lens": Form(Role.CUM_Q, (("requests + 1",),)),
}


class _OnStates(ABC):
    """Part of an EntryPoint that attends to no keys."""

    masked = False

    @abstractmethod
    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""

    @abstractmethod
    def _breaches(self, arguments: Arguments) -> Iterable[Breach]:
        """Return the preconditions that a call breaks. Raises WrongForm."""

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """Return no spans: it reads no keys."""
        return ()

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """Return the preconditions that a call breaks."""
        return judged(lambda: self._breaches(arguments))

    def mask(self, arguments: Arguments, span: RequestSpan) -> torch.Tensor | None:
        """Return None: it has no keys."""
        return None

    def leaves_empty_rows(self, arguments: Arguments) -> bool:
        """Return False: it has no requests of its own."""
        return False

    def workspace(self, arguments: Arguments) -> WorkspaceBytes:
        """Zero bytes: it takes no workspace."""
        return WorkspaceBytes(0, 0)


@dataclass(frozen=True)
class Merge(_OnStates):
    """A merge of `states`, (values, LSE) of each by their names, row by row and without requests.

    In place, it writes to the first one, in rows selected by `mask`.
    """

    name: str
    states: tuple[tuple[str, str], tuple[str, str]]
    in_place: bool
    module: str | None = "flashinfer.cascade"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        forms = {"mask": Form(Role.OTHER, (("tokens",),))} if self.in_place else {}
        for index, (values, lse) in enumerate(self.states):
            written = self.in_place and index == 0
            forms[values] = Form(Role.OUT if written else Role.OTHER, _VALUE_AXES)
            forms[lse] = Form(Role.LSE if written else Role.OTHER, _LSE_AXES)
        return parameters_of(arguments, forms, [name for names in self.states for name in names])

    def _breaches(self, arguments: Arguments) -> Iterable[Breach]:
        return merge_breaches(arguments, self.parameters(arguments), self.states)


@dataclass(frozen=True)
class Fixup(_OnStates):
    """fixup_zero_kv_rows: requests are the rows between cumulative lengths; their keys belong to another call."""

    name: str = "fixup_zero_kv_rows"
    module: str | None = None

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        return parameters_of(arguments, _FIXUP_FORMS, [*_FIXUP_FORMS, "max_seq_len"], ("max_seq_len",))

    def _breaches(self, arguments: Arguments) -> Iterable[Breach]:
        return fixup_breaches(arguments, self.parameters(arguments))
