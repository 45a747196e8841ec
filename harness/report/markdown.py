"""Markdown for GitHub: a campaign, a comparison of two, an issue; foreign text is escaped."""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache

import jinja2

import attnfuzz
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.family import family_of
from attnfuzz.harness.files.templates import environment_of
from attnfuzz.harness.report.cause_view import CauseView, cause_views, status_of, title_of_cause
from attnfuzz.harness.report.compare import Comparison, compare
from attnfuzz.harness.report.titles import title, title_of
from attnfuzz.harness.report.verdict import ledger_lines, left_out_lines, verdict
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.printable import printable, shortened
from attnfuzz.harness.verdict.wording import clock, count, replay_line
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import encode

MOST_CHARACTERS = 300
"""Limit for one message or name in a line."""

MOST_ROWS = 50
"""Most rows of a table; a quarter of that in a list. GitHub drops a summary above 1 MiB."""

MOST_REPORTS = 8
"""Reports shown in full, each up to MOST_CHARACTERS_OF_REPORT."""

MOST_CHARACTERS_OF_REPORT = 6000

MOST_CHARACTERS_OF_SCRIPT = 40_000
"""GitHub's limit for an issue is 65,536 characters."""

MOST_CHARACTERS_OF_CALLS = 4_000
MOST_CHARACTERS_OF_CASE = 8_000

_CLAUSES = {
    Kind.EMPTY_ROW: "empty_rows: a row that sees no key holds out 0 and lse -inf, unless the backend says otherwise",
    Kind.LSE_MISMATCH: "lse: the base of the log-sum-exp that the backend returns",
    Kind.NONDETERMINISTIC: "deterministic: the same call gives the same bits, unless the backend says otherwise",
    Kind.REPLAY_DIVERGED: "bitwise: a replayed graph gives the same bits as the eager calls",
    Kind.METAMORPHIC_MISMATCH: "bitwise: a change that keeps the question keeps the answer, and new page ids keep "
    "every bit",
}
_PADDED_ROWS = "padded_rows: rows of no request hold finite numbers, unless the backend says otherwise"

_LIMITS = {
    "most_rows": MOST_ROWS,
    "most_items": MOST_ROWS // 4,
    "most_reports": MOST_REPORTS,
    "most_characters_of_report": MOST_CHARACTERS_OF_REPORT,
}

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$!&])")
_BACKTICKS = re.compile(r"`+")


def one_line(text: str) -> str:
    """Make `text` printable on one line, cut with an ellipsis if it is too long."""
    line = " ".join(printable(text).split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def escape(text: str) -> str:
    """Escape any `text` to one line of plain text."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def code(text: str) -> str:
    """Format `text` as a code span on one line, also in a table: GitHub mentions no users from code."""
    line = one_line(text) or " "
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line[0] in "` " or line[-1] in "` " else ""
    # In tables, an unescaped bar ends a cell even in code; the backslash is removed.
    return f"{fence}{space}{line}{space}{fence}".replace("|", "\\|")


def fenced(text: str, language: str = "", most: int = 100_000) -> str:
    """Format the first `most` characters of `text` as a code block."""
    text = shortened(printable(text), most)
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


@cache
def template(name: str) -> jinja2.Template:
    """Load the markdown template of this name."""
    # Markdown's own escapes are the filters below.
    environment = environment_of("attnfuzz.harness.report", autoescape=False, keep_trailing_newline=True)
    environment.filters.update(
        clock=clock, code=code, count=count, escape=escape, fenced=fenced, one_line=one_line, replay_line=replay_line
    )
    environment.globals.update(title_of=title_of, title_of_cause=title_of_cause, status_of=status_of)
    return environment.get_template(name)


def _longest_run(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)


def render_markdown(standing: Standing, earlier: Standing | None = None, scripts: Collection[str] = ()) -> str:
    """Render the campaign as markdown, with changes since an earlier one; always below 1 MiB."""
    return template("summary.md.j2").render(
        standing=standing,
        causes=cause_views(standing, scripts),
        started=standing.started,
        verdict=verdict(standing),
        ledger=ledger_lines(standing.remarks),
        left_out=left_out_lines(standing.started),
        comparison=None if earlier is None else compare(earlier, standing),
        **_LIMITS,
    )


def render_comparison(comparison: Comparison) -> str:
    """Render a comparison as markdown."""
    return template("comparison.md.j2").render(comparison=comparison, **_LIMITS)


def render_issue(
    case: AnyCase,
    seen: Observation,
    environment: Mapping[str, str],
    scripts: Sequence[str] = (),
    cause: CauseView | None = None,
) -> str:
    """Render an issue as markdown, its title as the first heading, with further facts about its `cause`.

    `scripts` show the failure without attnfuzz, the best first. The first that fits into an issue is shown; if none
    does, the command that writes it.
    """
    script = next((text for text in scripts if len(text) <= MOST_CHARACTERS_OF_SCRIPT), None)
    case_json = encode(case).decode()
    return template("issue.md.j2").render(
        title=title(seen, (), [case.backend], [seen.mode] if seen.mode else []) if cause is None else cause.title,
        seen=seen,
        cause=cause,
        attnfuzz=attnfuzz.__version__,
        case=family_of(case).describe(case),
        case_json=case_json if len(case_json) <= MOST_CHARACTERS_OF_CASE else None,
        calls=next(filter(None, map(_calls_in, [script, *scripts])), None),
        most_of_calls=MOST_CHARACTERS_OF_CALLS,
        clause=_PADDED_ROWS if seen.place == "padded rows" else _CLAUSES.get(seen.kind),
        environment=environment,
        script=script,
        too_long=bool(scripts) and script is None,
        **_LIMITS,
    )


def _calls_in(script: str | None) -> str | None:
    """Return the source of a script's function that makes the calls; None if there is none."""
    try:
        functions = [node for node in ast.parse(script or "").body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return None
    run = next((node for node in functions if node.name == "run"), None)
    return None if run is None else ast.get_source_segment(script or "", run)
