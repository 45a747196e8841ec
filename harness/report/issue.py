"""A failure as the text of an issue, for those who own the kernel and know nothing of attnfuzz."""

import ast
from collections.abc import Mapping, Sequence

import attnfuzz
from attnfuzz.harness.report.gfm import template
from attnfuzz.harness.verdict.describe import describe_any
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.reference.case_file import AnyCase, encode

MOST_CHARACTERS_OF_SCRIPT = 40_000
"""GitHub takes an issue of 65,536 characters."""

MOST_CHARACTERS_OF_CALLS = 4_000
MOST_CHARACTERS_OF_CASE = 8_000

_CLAUSES = {
    Kind.EMPTY_ROW: "empty_rows: a row that sees no key holds out 0 and lse -inf, unless the backend says otherwise",
    Kind.LSE_MISMATCH: "lse: the base of the log-sum-exp that the backend returns",
    Kind.NONDETERMINISTIC: "deterministic: the same call gives the same bits, unless the backend says otherwise",
    Kind.REPLAY_DIVERGED: "bitwise: a replayed graph gives what the same calls give eagerly",
    Kind.METAMORPHIC_MISMATCH: "bitwise: what does not change the question does not change the answer, "
    "and ids of pages not a bit of it",
}
_PADDED_ROWS = "padded_rows: rows of no request hold finite numbers, unless the backend says otherwise"


def render_issue(case: AnyCase, seen: Observation, environment: Mapping[str, str], scripts: Sequence[str] = ()) -> str:
    """An issue as markdown, its title as the first heading.

    `scripts` show the failure without attnfuzz, the best first. The first that GitHub has room for is shown; if none
    is, the command that writes it.
    """
    script = next((text for text in scripts if len(text) <= MOST_CHARACTERS_OF_SCRIPT), None)
    case_json = encode(case).decode()
    return template("issue.md.j2").render(
        backend=case.backend,
        seen=seen,
        attnfuzz=attnfuzz.__version__,
        case=describe_any(case),
        case_json=case_json if len(case_json) <= MOST_CHARACTERS_OF_CASE else None,
        calls=next(filter(None, map(_calls_in, [script, *scripts])), None),
        most_of_calls=MOST_CHARACTERS_OF_CALLS,
        clause=_clause(seen),
        environment=environment,
        script=script,
        too_long=bool(scripts) and script is None,
    )


def _calls_in(script: str | None) -> str | None:
    """The function of a script that makes the calls."""
    try:
        functions = [node for node in ast.parse(script or "").body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return None
    run = next((node for node in functions if node.name == "run"), None)
    return None if run is None else ast.get_source_segment(script or "", run)


def _clause(observation: Observation) -> str | None:
    """The clause of the backend's contract that is broken; None for what holds of every kernel."""
    return _PADDED_ROWS if observation.place == "padded rows" else _CLAUSES.get(observation.kind)
