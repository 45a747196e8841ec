"""Answers of FlashInfer's commands, as `--json` writes them."""

import msgspec


class DumpedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a dump, with its number. `breaches` are the preconditions that it breaks, null where unknown."""

    call: int
    function: str
    status: str
    breaches: tuple[str, ...] | None


class DumpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a dump."""

    calls: tuple[DumpedCall, ...]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A case that was made of dumped calls; `call` is the number of the last of them."""

    case: str
    call: int
    calls: int
    buffers: int
    bytes: int
    notes: tuple[str, ...]
    breaches: tuple[str, ...]


class BuiltModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module: its library, or the reason why it can't be compiled. `seconds` is 0 if it was compiled before."""

    name: str
    library: str | None
    reason: str | None
    seconds: float


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    """The modules that GPU backends need on these architectures.

    `left` are the pairs of compile-time features that a choice of modules leaves out.
    """

    arch: str
    modules: tuple[BuiltModule, ...]
    left: tuple[tuple[str, str], ...] = ()
