"""Known failures of servers: the `[[server]]` tables of a ledger, beside the `[[known]]` ones of kernels."""

import tomllib
from pathlib import Path

import msgspec

from attnfuzz.harness.serve.judging import WRONG_ANSWERS, ServedFault, ServedKind
from attnfuzz.reference.foreign import read_bytes, reason
from attnfuzz.reference.user_error import UserError

DEFAULT_NAME = "attnfuzz-ledger.toml"
"""As `attnfuzz.harness.ledger.file`, which imports torch, has it."""


class ServeLedgerError(UserError):
    """A ledger can't be used; the message has the place and the correction."""


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known cause: its failures are of this `kind` and need all of `features`, or it is the `finding` of this name.

    Kinds of wrong answers are one: a cause shows in each of them by turns.

    `server` is the beginning of the server's name and version, like "vllm" or "vllm 0.32".
    """

    reason: str
    kind: ServedKind | None = None
    features: tuple[str, ...] = ()
    finding: str | None = None
    server: str = ""
    issue: str | None = None

    @property
    def title(self) -> str:
        """The entry in half a line."""
        return ", ".join(filter(None, (self.kind or "any failure", self.server, self.finding, *self.features)))

    def matches(self, fault: ServedFault, needs: tuple[str, ...], name: str, engine: str) -> bool:
        """Return whether the entry matches a finding."""
        return (
            (self.kind in {None, fault.kind} or {self.kind, fault.kind} <= WRONG_ANSWERS)
            and self.finding in {None, name}
            and engine.startswith(self.server)
            and set(self.features) <= set(needs)
        )


class ServerLedger:
    """The entries for servers; `used` are those that matched."""

    def __init__(self, entries: tuple[ServerEntry, ...] = ()) -> None:
        self.entries = entries
        self.used: set[int] = set()

    @classmethod
    def load(cls, path: Path) -> "ServerLedger":
        """Read a ledger. Raises ServeLedgerError."""
        try:
            content = tomllib.loads(read_bytes(path).decode())
        except OSError as error:
            raise ServeLedgerError(f"cannot read ledger {path}: {error.strerror}; give a file") from None
        except (ValueError, RecursionError) as error:
            raise ServeLedgerError(f"{path} is not TOML: {reason(error)}") from None
        try:
            entries = msgspec.convert(content.get("server", []), tuple[ServerEntry, ...])
        except msgspec.ValidationError as error:
            raise ServeLedgerError(f"{path}, [[server]]: {reason(error)}") from None
        for number, entry in enumerate(entries, 1):
            if entry.kind is None and not entry.finding:
                raise ServeLedgerError(f"{path}, [[server]] {number}: give the kind of the failure, or its finding")
        return cls(entries)

    def reason(self, fault: ServedFault, needs: tuple[str, ...], name: str, engine: str) -> str | None:
        """Return the reason of the first entry that matches; None if none does."""
        for number, entry in enumerate(self.entries):
            if entry.matches(fault, needs, name, engine):
                self.used.add(number)
                return f"{entry.reason} ({entry.issue})" if entry.issue else entry.reason
        return None

    def unused(self) -> list[str]:
        """List the titles of entries that matched nothing."""
        return [entry.title for number, entry in enumerate(self.entries) if number not in self.used]
