"""`attnfuzz ledger`: maintaining the file of known findings."""

from pathlib import Path

from attnfuzz.harness.cli.terminal import tell
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.ledger.rewrite import rewritten
from attnfuzz.harness.verdict.wording import count


def rewrite_ledger(*, path: Path) -> None:
    """Replace the former words of a ledger by current ones. Raises LedgerError if it can't be used."""
    Ledger.load(path)
    text = path.read_bytes().decode()
    current = rewritten(text)
    if current == text:
        tell(f"{path} names features as reports do.")
        return
    changed = sum(old != new for old, new in zip(text.splitlines(), current.splitlines(), strict=True))
    write_durably(path, current.encode())
    tell(f"Rewrote {count(changed, 'line')} of {path}.")
