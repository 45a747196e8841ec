"""What a report says of the ledger."""

from attnfuzz.harness.campaign.events import LedgerRemark
from attnfuzz.harness.campaign.remarks import NO_LONGER, NOT_MET
from attnfuzz.harness.report.verdict import ledger_lines


def remark(entry: int, text: str) -> LedgerRemark:
    return LedgerRemark(at=9.0, entry=entry, title=f"Hang in number{entry}", text=text)


def test_few_entries_are_told_with_their_titles() -> None:
    assert ledger_lines([remark(3, NOT_MET), remark(5, NO_LONGER)]) == [
        f"entry 3 (Hang in number3): {NOT_MET}",
        f"entry 5 (Hang in number5): {NO_LONGER}",
    ]


def test_many_of_which_the_same_is_said_are_told_in_one_line() -> None:
    lines = ledger_lines([*(remark(entry, NOT_MET) for entry in (2, 3, 7, 40)), remark(5, NO_LONGER)])
    assert lines == [f"entries 2, 3, 7 and 40: {NOT_MET}", f"entry 5 (Hang in number5): {NO_LONGER}"]


def test_nothing_is_said_of_a_ledger_without_remarks() -> None:
    assert ledger_lines([]) == []
