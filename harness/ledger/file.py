"""The ledger: a file in a user's repository with known failures, and the reasons for accepting them.

An entry names at least a backend, a reason, and a kind or features. docs/guides/ledger.md is the full guide.

A ledger may be shared by machines that have different backends, so a backend that is unknown here is no mistake.
"""

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attnfuzz.harness.backends.registry import similar, why_unknown
from attnfuzz.harness.family import families
from attnfuzz.harness.ledger.entry import Entry, reason_of
from attnfuzz.harness.verdict.failures import FAULTS, Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.foreign import read_bytes, reason
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase, validate_backend_name

DEFAULT_NAME = "attnfuzz-ledger.toml"

_MOST_NAMED = 5
_LONGEST_NAME = 80
"""Unknown backends that a remark names, and the characters of each."""


class LedgerError(UserError):
    """A ledger can't be used. The message has a line per mistake, with the correction."""


class Ledger:
    """The entries of a ledger. An empty ledger accepts no failure.

    `remark` is a line on backends that are unknown here, if entries name some.
    """

    def __init__(self, entries: Sequence[Entry] = (), remark: str | None = None) -> None:
        self.entries = tuple(entries)
        self.remark = remark

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        """Read a ledger. Raises LedgerError, also if it can't be read."""
        try:
            content = tomllib.loads(read_bytes(path).decode())
        except OSError as error:
            raise LedgerError(f"cannot read ledger {path}: {error.strerror}; give a file") from None
        except RecursionError:
            raise LedgerError(f"{path} is not a ledger: it is nested too deeply") from None
        except ValueError as error:
            # Invalid TOML, invalid UTF-8, and integers of thousands of digits.
            raise LedgerError(f"{path} is not TOML: {reason(error)}") from None
        entries, mistakes = _entries(content)
        if mistakes:
            raise LedgerError("\n".join(f"{path}, {mistake}" for mistake in mistakes))
        unknown = [name for name in _backends(entries) if why_unknown(name) is not None]
        return cls(entries, f"{path}: {_remark(unknown)}" if unknown else None)

    def reason(self, fingerprint: Fingerprint, case: AnyCase, name: str | None = None) -> str | None:
        """Return the text of the first entry that matches a failure, or None."""
        return reason_of(self.entries, fingerprint, case, name)


def _backends(entries: Iterable[Entry]) -> list[str]:
    """Return the backends that entries name, each once."""
    return list(dict.fromkeys(name for entry in entries for name in entry.backends))


def _remark(unknown: Sequence[str]) -> str:
    """Return one line on unknown backends, however many there are."""
    named = ", ".join(map(_with_similar, unknown[:_MOST_NAMED]))
    more = len(unknown) - _MOST_NAMED
    others = f" and {more:,} more" if more > 0 else ""
    return f"{count(len(unknown), 'backend')} unknown here, whose entries match nothing: {named}{others}"


def _with_similar(name: str) -> str:
    close = similar(name)
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return short + (f" (did you mean {' or '.join(close)}?)" if close else "")


def default_ledger() -> Path | None:
    """Return the ledger of this folder, if it has one."""
    return path if (path := Path(DEFAULT_NAME)).exists() else None


def _entries(content: dict[str, Any]) -> tuple[list[Entry], list[str]]:
    """Return the entries of a ledger's content, and its mistakes."""
    # Tables of servers are read by `attnfuzz serve`.
    unknown = [key for key in content if key not in {"known", "server"}]
    mistakes = [f"{key}: unknown; a ledger is made of [[known]] tables" for key in unknown]
    tables = content.get("known", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return [], [*mistakes, "known: must be an array of tables, each headed by [[known]]"]
    entries: list[Entry] = []
    # Number of the first entry by its meaning.
    numbers: dict[Entry, int] = {}
    for number, table in enumerate(tables, 1):
        where = f"entry {number}"
        wrong = list(_wrong_values(table))
        if not wrong:
            entry = msgspec.convert(table, Entry)
            entries.append(entry)
            bare = Entry(
                **{name: getattr(entry, name) for name in ("mode", "kernel", "place", "finding")},
                backend=tuple(sorted(set(entry.backends))),
                kind=tuple(sorted(set(entry.kinds))) or None,
                features=tuple(sorted(map(current_word, entry.features))),
                reason="",
            )
            first = numbers.setdefault(bare, number)
            if first != number:
                wrong = [f"means the same as entry {first}: keep one of them"]
        mistakes += [f"{where}: {text}" for text in wrong]
    return entries, mistakes


def _wrong_values(table: dict[str, Any]) -> Iterable[str]:
    """Yield the mistakes in one entry's table, as clauses with the correction."""
    fields = {field.name: field for field in msgspec.structs.fields(Entry)}
    yield from (_unknown("key", key, fields) for key in table if key not in fields)
    for name, field in fields.items():
        if name not in table:
            if field.required:
                yield f"{name} is missing: {_REQUIRED[name]}"
            continue
        yield from _wrong_value(name, table[name], field.type)
    kind = table.get("kind")
    if kind is None and not table.get("features"):
        yield "kind is missing: name the kind of failure, as the report's first line does, or the features it needs"
    for each in kind if isinstance(kind, list) else [kind]:
        if isinstance(each, str) and each in FAULTS and "place" in table:
            yield f"place: the place of a stray access is arbitrary; leave it out of an entry for {each}"


def _wrong_value(name: str, value: object, kind: Any) -> Iterable[str]:
    if name in _SEVERAL and isinstance(value, list):
        if not value:
            yield f"{name} is empty: {_REQUIRED.get(name, 'leave it out')}"
        for each in value:
            yield from _wrong_item(name, each, str)
    else:
        yield from _wrong_item(name, value, kind)


def _wrong_item(name: str, value: object, kind: Any) -> Iterable[str]:
    """Yield the mistakes in a value, or in one of an array's."""
    choices = _choices(name)
    if choices and isinstance(value, str) and value not in choices:
        yield _unknown(name, value, choices)
        return
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        # For a given key, it does not help that it is optional.
        yield f"{name}: {str(error)[:1].lower()}{str(error)[1:]}".replace(" | null`", "`")
        return
    if isinstance(converted, str) and not converted.strip():
        yield f"{name} is empty: {_REQUIRED.get(name, 'leave it out')}"
    elif name == "backend":
        yield from _wrong_backend(str(converted))
    elif name == "features":
        yield from (_unknown_feature(word) for word in converted if word not in _words())
    elif name == "issue" and not str(converted).startswith(("https://", "http://")):
        yield f"issue: {converted!r} is not a URL"


def _wrong_backend(name: str) -> Iterable[str]:
    try:
        validate_backend_name(name)
    except ImpossibleCase as error:
        yield str(error)


def _unknown(noun: str, word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"give one of {', '.join(known)}"
    return f"unknown {noun} {word!r}: {hint}"


def _unknown_feature(word: str) -> str:
    close = difflib.get_close_matches(word, _words(), n=1)
    hint = f"did you mean {current_word(close[0])!r}?" if close else f"the words are in {_WORDS}"
    return f"unknown feature {word!r}: {hint}"


def _words() -> tuple[str, ...]:
    """Return all words for features of cases that an entry may name, current and former."""
    return tuple(word for family in families() for word in (*family.table.words, *family.table.former))


def current_word(word: str) -> str:
    """Return the current word for a feature that an older ledger names, or the word itself."""
    return next((former[word] for family in families() if word in (former := family.table.former)), word)


_WORDS = "docs/reference/features.md"

_REQUIRED = {
    "backend": "name the backend that fails",
    "reason": "say why the failure is accepted",
}

_SEVERAL = {"backend", "kind"}


def _choices(name: str) -> list[str]:
    """Return the values that a field may have, none if it may have any."""
    if name == "mode":
        return list(dict.fromkeys(mode for family in families() for mode in family.modes))
    return [kind.value for kind in Kind] if name == "kind" else []
