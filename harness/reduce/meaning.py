"""The meaning of a case's calls to their kernels: axes of tensors, requests, and broken preconditions."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.reduce.placed_views import Place
from attnfuzz.kernels.meaning import Parameter, RequestSpan, Role
from attnfuzz.kernels.meaning.forms import window_of
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.reference.calls import CallCase, View

_MAX_KEYS = 1 << 20
"""A longer KV is garbage."""


@dataclass(frozen=True)
class TensorSite:
    """A tensor of call `call` known to its entry point: its place, parameter, view and content."""

    call: int
    place: Place
    parameter: Parameter
    view: View
    tensor: torch.Tensor

    def size(self, axis: str) -> int:
        """Return the longest dimension that counts `axis`, or 0."""
        pairs = zip(self.parameter.axes, self.view.shape, strict=True)
        return max((size for name, size in pairs if name == axis), default=0)


class Meaning:
    """A case interpreted by its entry points. Calls that none of them understands have no sites and no spans."""

    def __init__(self, case: CallCase) -> None:
        self.case = case
        self.sites: list[TensorSite] = []
        self.spans: list[tuple[RequestSpan, ...]] = []
        for index, call in enumerate(case.calls):
            entry = entry_points().get(call.op)
            arguments = {} if entry is None else literal_arguments(case, index)
            try:
                parameters = () if entry is None else entry.parameters(arguments)
                self.spans.append(() if entry is None else entry.spans(arguments))
            except ValueError:
                parameters = ()
                self.spans.append(())
            self.sites += (self._site(index, parameter, arguments) for parameter in parameters)

    def size(self, axis: str) -> int:
        """Return the longest dimension that counts `axis` in any call."""
        return max((site.size(axis) for site in self.sites), default=0)

    def of_role(self, *roles: Role) -> Iterator[TensorSite]:
        """Return the sites with one of these roles."""
        return (site for site in self.sites if site.parameter.role in roles)

    @property
    def batch(self) -> int:
        """The number of requests of the largest call, by its tensors or its kernel's interpretation of them."""
        return max([self.size("requests"), *(len(spans) for spans in self.spans)])

    @property
    def strangers(self) -> frozenset[int]:
        """The calls that no entry point understands."""
        return frozenset(range(len(self.case.calls))) - {site.call for site in self.sites}

    @property
    def tokens(self) -> int:
        """The number of query rows of the largest call."""
        return max(self.size("tokens"), self.size("requests") * self.size("tokens per request"))

    def kv_len(self, call: int, request: int) -> int:
        """Return the number of keys of a request in a call."""
        spans = self.spans[call]
        kv_len = spans[request].kv_len if request < len(spans) else 0
        return kv_len if 0 < kv_len <= _MAX_KEYS else 0

    def rows(self, request: int) -> frozenset[int]:
        """Return the query rows of a request, in the call in which it has the most."""
        spans = (spans[request] for spans in self.spans if request < len(spans))
        reach = [range(max(0, span.first_row), min(self.tokens, span.first_row + span.q_len)) for span in spans]
        return frozenset(max(reach, key=len) if reach else ())

    def _site(self, call: int, parameter: Parameter, arguments: Mapping[str, Any]) -> TensorSite:
        name, _, member = parameter.name.partition("[")
        value, tensor = self.case.calls[call].arguments[name], arguments[name]
        if not member:
            assert isinstance(value, View)
            return TensorSite(call, ("call", call, name), parameter, value, tensor)
        index = int(member.rstrip("]"))
        assert isinstance(value, list)
        return TensorSite(call, ("call", call, name, index), parameter, value[index], tensor[index])


def breached(case: CallCase) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Return the preconditions that the calls of a case break, each as an entry point and its arguments."""
    known = ((call.op, index) for index, call in enumerate(case.calls) if call.op in entry_points())
    return frozenset(
        (op, breach.arguments)
        for op, index in known
        for breach in entry_points()[op].breaches(literal_arguments(case, index))
    )


def compiled_for(case: CallCase) -> Hashable:
    """Return the parameters for which GPU kernels are compiled: calls that agree in them run the same kernels.

    Head dims, slots of a page, query heads per KV head, and whether there is a window. XQA's modules are compiled for
    these (gen_xqa_module, flashinfer/jit/xqa.py), others for some of them; element types are left out, since no edit
    changes them.
    """
    meaning = Meaning(case)
    heads = meaning.size("q heads") / max(1, meaning.size("kv heads"))
    windows = tuple(window_of(call.arguments) >= 0 for call in case.calls)
    return (*map(meaning.size, ("qk dim", "vo dim", "slots")), heads, windows)
