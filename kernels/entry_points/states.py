"""What works on attention states, (out, LSE) of each row: merging two, and repairing rows without keys."""

from dataclasses import dataclass

from attnfuzz.kernels.entry_points.duties import judged
from attnfuzz.kernels.entry_points.duties.states import fixup_breaches, merge_breaches
from attnfuzz.kernels.entry_points.entry_point import Arguments, Breach, Parameter, RequestSpan, Role
from attnfuzz.kernels.entry_points.forms import Form, parameters_of
from attnfuzz.kernels.ops_table import WorkspaceBytes

_VALUES = (("tokens", "q heads", "vo dim"),)
_LSE = (("tokens", "q heads"),)
_FIXUP = {
    "out": Form(Role.OUT, _VALUES),
    "lse": Form(Role.LSE, _LSE),
    "kv_lens": Form(Role.KV_LENGTHS, (("requests",),)),
    "cum_seq_lens": Form(Role.CUM_Q, (("requests + 1",),)),
}


@dataclass(frozen=True)
class Merge:
    """Merges `states`, (values, LSE) of each by their names, row by row and without requests.

    In place: into the first one, where `mask` says so.
    """

    name: str
    states: tuple[tuple[str, str], tuple[str, str]]
    in_place: bool
    module: str | None = "flashinfer.cascade"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
        forms = {"mask": Form(Role.OTHER, (("tokens",),))} if self.in_place else {}
        for index, (values, lse) in enumerate(self.states):
            written = self.in_place and index == 0
            forms[values] = Form(Role.OUT if written else Role.OTHER, _VALUES)
            forms[lse] = Form(Role.LSE if written else Role.OTHER, _LSE)
        return parameters_of(arguments, forms, [name for names in self.states for name in names])

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """None: rows belong to no request."""
        return ()

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """The preconditions that a call breaks."""
        return judged(lambda: merge_breaches(arguments, self.parameters(arguments), self.states))

    def workspace(self, arguments: Arguments) -> WorkspaceBytes:
        """None of it: it takes no workspace."""
        return WorkspaceBytes(0, 0)


@dataclass(frozen=True)
class Fixup:
    """fixup_zero_kv_rows: requests are the rows between cumulative lengths; what keys they had is another call's."""

    name: str = "fixup_zero_kv_rows"
    module: str | None = None

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
        return parameters_of(arguments, _FIXUP, [*_FIXUP, "max_seq_len"], ("max_seq_len",))

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """None: it reads no keys."""
        return ()

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """The preconditions that a call breaks."""
        return judged(lambda: fixup_breaches(arguments, self.parameters(arguments)))

    def workspace(self, arguments: Arguments) -> WorkspaceBytes:
        """None of it: it takes no workspace."""
        return WorkspaceBytes(0, 0)
