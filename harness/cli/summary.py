"""What a campaign says at its end."""

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from attnfuzz.harness.campaign.events import FindingChecked, FindingFiled
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.status import score_table
from attnfuzz.harness.cli.terminal import rule_width
from attnfuzz.harness.report.ledger_remarks import ledger_lines
from attnfuzz.harness.report.verdict import Level, verdict
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import count, headline, replay_line

MESSAGES_SHOWN = 5


def summarise(console: Console, standing: Standing) -> None:
    """Print what fails unexpectedly, with a line that replays it, then the scores, then the result in one line."""
    unexpected = standing.unexpected
    for number, finding in enumerate(unexpected, start=1):
        title = f"Finding {number} of {len(unexpected)}, {finding.state}"
        console.print(Rule(title, style="red", characters="-"), width=rule_width(console))
        console.print(Text(printable(_told(finding))))
        _line(console, f"\n  {replay_line(finding.path)}\n")
    if unexpected:
        console.print(Rule(style="red", characters="-"), width=rule_width(console))
    console.print(score_table(standing, width=console.width, live=False))
    _list_others(console, standing)
    console.print(_result(standing))


def _told(finding: FindingFiled | FindingChecked) -> str:
    """What this campaign filed in full; what an earlier one did in two lines, since it was told then."""
    if isinstance(finding, FindingFiled):
        return finding.report.rstrip()
    times = f"{finding.times} of {count(finding.runs, 'time')}"
    return (
        f"{headline(finding.case.backend, finding.observation)}\nit was found before, and was run again: failed {times}"
    )


def _list_others(console: Console, standing: Standing) -> None:
    for finding in standing.findings:
        if finding.known is not None:
            words = headline(finding.case.backend, finding.observation)
            _line(console, f"Known: {words}: {finding.known}. {replay_line(finding.path)}")
    for fixed in standing.fixed:
        words = headline(fixed.case.backend, fixed.observation)
        _line(console, f"Fixed: {words}: it passes now. {replay_line(fixed.path)}")
    for kept in standing.unconfirmed:
        words = headline(kept.case.backend, kept.observation)
        _line(console, f"Unconfirmed: {words}: {kept.reason}. Kept in {kept.path}")
    for gap in standing.gaps:
        _line(console, f"Gap: {headline(gap.case.backend, gap.observation)}: {gap.observation.message}")
    for backend, score in standing.scores.items():
        for message, times in score.unsupported.most_common(MESSAGES_SHOWN):
            _line(console, f"Unsupported by {backend}, {count(times, 'time')}: {message}")
    for line in ledger_lines(standing.remarks):
        _line(console, f"Ledger: {line}")


def _line(console: Console, text: str) -> None:
    console.print(printable(text), soft_wrap=True, highlight=False, markup=False)


def _result(standing: Standing) -> Text:
    result = verdict(standing)
    seed = f" (seed {standing.started.seed})" if standing.started else ""
    return Text(f"{result.text}{seed}.", "bold green" if result.level is Level.GOOD else "bold red")
