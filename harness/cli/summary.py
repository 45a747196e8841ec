"""What a campaign says at its end."""

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from attnfuzz.harness.cli.display import table
from attnfuzz.harness.cli.scoreboard import Scoreboard
from attnfuzz.harness.cli.wording import clock, count, headline

MESSAGES_SHOWN = 5


def summarise(console: Console, board: Scoreboard) -> None:
    """Print each finding with a line that replays it, then the scores, then the result in one line."""
    for number, finding in enumerate(board.findings, start=1):
        title = f"Finding {number} of {len(board.findings)}"
        console.print(Rule(title, style="red", characters="-"))
        console.print(Text(finding.report.rstrip()))
        console.print(f"\n  attnfuzz replay {finding.path}\n", soft_wrap=True, highlight=False, markup=False)
    if board.findings:
        console.print(Rule(style="red", characters="-"))
    console.print(table(board))
    _list_others(console, board)
    console.print(_result(board))


def _list_others(console: Console, board: Scoreboard) -> None:
    for kept in board.unconfirmed:
        console.print(
            f"Unconfirmed: {headline(kept.case.backend, kept.observation)}: {kept.reason}. Kept in {kept.path}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    for gap in board.gaps:
        console.print(f"Gap: {headline(gap.case.backend, gap.observation)}: {gap.observation.message}", markup=False)
    for backend, score in board.scores.items():
        for message, times in score.unsupported.most_common(MESSAGES_SHOWN):
            console.print(f"Unsupported by {backend}, {count(times, 'time')}: {message}", markup=False)


def _result(board: Scoreboard) -> Text:
    spent = f"{count(board.cases, 'case')} in {clock(board.elapsed)} (seed {board.seed})"
    if board.findings:
        return Text(f"{count(len(board.findings), 'finding')} in {spent}.", style="bold red")
    gaps = f", {count(len(board.gaps), 'gap')} that only the strict contract breaks" if board.gaps else ""
    return Text(f"No findings{gaps} in {spent}.", style="bold green")
