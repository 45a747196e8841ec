"""Print a ledger's entries on FlashInfer as a module of FlashInfer's tests: python _fuzz_ledger.py LEDGER > FILE."""

import re
import sys
from pathlib import Path

from attnfuzz.harness.ledger.file import Ledger, current_word
from attnfuzz.harness.verdict.failures import DEATHS

_NUMBER = re.compile(r"https://github\.com/flashinfer-ai/flashinfer/(?:issues|pull)/(\d+)")
_HEAD = '''"""Known failures of attention, exported from a ledger of attnfuzz.

A configuration has `features`, a collection of attnfuzz's names of features.
"""

from tests.test_helpers.fuzz_ledger import Finding, FuzzLedger


def _having(*features):
    return lambda config: set(features) <= set(config.features)


LEDGER = FuzzLedger(
    "attention",
    (
'''


def exported(entries):
    """Return the source of a module with a FuzzLedger, and the titles of the entries that it can't express.

    These are entries without a number at FlashInfer, and those of one kernel, place or finding: without that key they
    would match more. A FuzzLedger has no kinds, so an entry that accepts a death is a quarantine for all kinds.
    """
    rows, left_out = [], []
    for entry in entries:
        number = _NUMBER.fullmatch(entry.issue or "")
        if number is None or entry.kernel or entry.place or entry.finding:
            left_out.append(entry.title)
            continue
        features = [*map(current_word, entry.features), *([f"mode={entry.mode}"] if entry.mode else [])]
        match = f"_having({', '.join(map(repr, features))})"
        quarantine = not entry.kinds or not DEATHS.isdisjoint(entry.kinds)
        for backend in entry.backends:
            reason = f"{entry.reason}; gh #{number[1]}"
            rows.append(f"        Finding({match}, {reason!r}, quarantine={quarantine}, backend={backend!r}),\n")
    return f"{_HEAD}{''.join(rows)}    ),\n)\n", left_out


if __name__ == "__main__":
    entries = Ledger.load(Path(sys.argv[1])).entries
    module, left_out = exported(entries)
    print(module, end="")
    why = "without an issue at FlashInfer, or of one kernel, place or finding"
    print(f"{len(left_out)} of {len(entries)} entries left out: {why}", file=sys.stderr)
