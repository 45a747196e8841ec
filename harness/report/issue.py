"""A finding as the text of an issue, for those who own the kernel and know nothing of attnfuzz."""

from collections.abc import Mapping

import attnfuzz
from attnfuzz.harness.campaign.events import AnyFinding
from attnfuzz.harness.describe import describe
from attnfuzz.harness.failures import Kind, Observation
from attnfuzz.harness.report.gfm import template
from attnfuzz.reference.case_file import encode

MOST_CHARACTERS_OF_SCRIPT = 40_000
"""GitHub takes an issue of 65,536 characters."""

_CLAUSES = {
    Kind.EMPTY_ROW: "empty_rows: a row that sees no key holds out 0 and lse -inf, unless the backend says otherwise",
    Kind.LSE_MISMATCH: "lse: the base of the log-sum-exp that the backend returns",
    Kind.NONDETERMINISTIC: "deterministic: the same call gives the same bits, unless the backend says otherwise",
    Kind.REPLAY_DIVERGED: "bitwise: a replayed graph gives what the same calls give eagerly",
    Kind.METAMORPHIC_MISMATCH: "bitwise: what does not change the question does not change the answer, "
    "and ids of pages not a bit of it",
}
_PADDED_ROWS = "padded_rows: rows of no request hold finite numbers, unless the backend says otherwise"


def render_issue(finding: AnyFinding, environment: Mapping[str, str], script: str | None = None) -> str:
    """An issue as markdown, its title as the first heading. `script` shows the failure without attnfuzz.

    It is never longer than what GitHub takes: a script that is too long is left out, with the command that
    writes it.
    """
    long = script is not None and len(script) > MOST_CHARACTERS_OF_SCRIPT
    return template("issue.md.j2").render(
        finding=finding,
        attnfuzz=attnfuzz.__version__,
        case=describe(finding.case),
        case_json=encode(finding.case).decode(),
        clause=_clause(finding.observation),
        environment=environment,
        script=None if long else script,
        too_long=long,
    )


def _clause(observation: Observation) -> str | None:
    """The clause of the backend's contract that is broken; None for what holds of every kernel."""
    return _PADDED_ROWS if observation.place == "padded rows" else _CLAUSES.get(observation.kind)
