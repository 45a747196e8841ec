"""What a campaign has to say of its ledger, in few lines."""

from collections.abc import Sequence

from attnfuzz.harness.campaign.events import LedgerRemark

_FEW = 3
"""So many entries of which the same is to be said are told one by one. In a new home it is most of a ledger."""


def ledger_lines(remarks: Sequence[LedgerRemark]) -> list[str]:
    """Each entry with its title; or the numbers of all of which the same is said."""
    by_text: dict[str, list[LedgerRemark]] = {}
    for remark in remarks:
        by_text.setdefault(remark.text, []).append(remark)
    lines = []
    for text, told in by_text.items():
        if len(told) <= _FEW:
            lines += [f"entry {remark.entry} ({remark.title}): {text}" for remark in told]
        else:
            *most, last = (str(remark.entry) for remark in told)
            lines.append(f"entries {', '.join(most)} and {last}: {text}")
    return lines
