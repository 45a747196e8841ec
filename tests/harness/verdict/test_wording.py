"""Words and numbers as people read them."""

from fake_search import observed

from attnfuzz.harness.verdict.wording import clock, count, headline, replay_line


def test_numbers_read_well() -> None:
    assert [count(1, "case"), count(1200, "case")] == ["1 case", "1,200 cases"]
    assert [clock(0.4), clock(99), clock(185), clock(4200)] == ["0 s", "99 s", "3:05", "1:10:00"]


def test_a_failure_is_reported_in_half_a_line() -> None:
    assert headline("mine", observed()) == "OutputMismatch at out in mine, decode"


def test_a_line_to_paste_survives_blanks() -> None:
    assert replay_line("my home/findings/x") == "attnfuzz replay 'my home/findings/x'"
