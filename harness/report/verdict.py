"""A campaign's result in one line, and its remarks on the ledger in a few."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from attnfuzz.harness.campaign.events import CampaignStarted, JobFailed, LedgerRemark
from attnfuzz.harness.campaign.knowledge import JOB_KILLED, OUT_OF_TIME
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.cause_view import KNOWN, cause_views
from attnfuzz.harness.verdict.wording import clock, count

_FEW = 3
"""Entries up to which the same remark is repeated; a new home has it for most of a ledger."""


class Level(StrEnum):
    """Whether there is something to do. FAILED: the campaign itself failed, so its result is incomplete."""

    GOOD = "good"
    BAD = "bad"
    FAILED = "failed"


@dataclass(frozen=True)
class CampaignVerdict:
    """A campaign's result in one line of `text`, without a full stop."""

    text: str
    level: Level


def verdict(standing: Standing) -> CampaignVerdict:
    """Sum up a campaign; known findings are mentioned, but don't lower the level."""
    findings = _findings(standing)
    comma = "," if ", " in findings else ""
    text = f"{findings}{comma} {_counted(standing)}over {clock(standing.at)}"
    if standing.failure is not None:
        why = "The campaign ended early" if standing.failure.fixable else "The harness itself failed"
        return CampaignVerdict(f"{why}: {text}", Level.FAILED)
    if standing.idle:
        return CampaignVerdict(f"No case was judged in {clock(standing.at)}", Level.FAILED)
    level = Level.GOOD if standing.clean else Level.BAD
    if standing.finished is None:
        return CampaignVerdict(f"Not finished: {text} so far", level)
    if standing.finished.interrupted:
        return CampaignVerdict(f"Stopped early: {text}", level)
    return CampaignVerdict(text, level)


def failure_words(failure: JobFailed) -> str:
    """Return why a campaign failed, as sentences: in one line unless the harness is broken."""
    return f"{in_a_sentence(failure.text)}." if failure.fixable else f"{failure.text}\nThe harness itself failed."


def in_a_sentence(text: str) -> str:
    """Return a message as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def _counted(standing: Standing) -> str:
    """Name the number of cases drawn and judged, or of runs if only earlier cases were run; "" if there were none."""
    number = (standing.cases, "case") if standing.cases else (standing.runs, "run")
    return f"in {count(*number)} " if number[0] else ""


def why_idle(standing: Standing, *, more: str) -> str:
    """Return why a campaign judged nothing, in words with the remedy; `more` is the advice to allow more time."""
    reasons = sum((score.unsupported for score in standing.scores.values()), Counter[str]())
    if standing.awaited:
        return f"the time was over while a case was running, for {clock(standing.waiting)}, which may be a hang; {more}"
    if not reasons and standing.ready:
        return f"a worker was ready, but the time was over before its first case was; {more}"
    if not reasons:
        return f"the time was over before a worker was ready; {more}"
    return f"no case is supported; most frequent reason: {reasons.most_common(1)[0][0]}"


def _findings(standing: Standing) -> str:
    """List the causes by state, then the unsettled ones: 2 new causes, 1 open (5 failures), 1 with unknown needs."""
    views = cause_views(standing)
    states = Counter(view.status for view in views)
    failing = [(states[state], state) for state in (State.NEW, State.RETURNED, State.OPEN) if states[state]]
    parts = [f"{number:,} {state}" for number, state in failing] or ["No findings"]
    if failing:
        failures = sum(view.failures for view in views if view.status != KNOWN)
        several = failures > sum(number for number, _ in failing)
        noun = "cause" if several else "finding"
        parts[0] += f" {noun}" if failing[0][0] == 1 else f" {noun}s"
        parts[-1] += f" ({count(failures, 'failure')})" if several else ""
    unsearched = sum(view.failures > 0 and view.lacks_needs for view in views)
    if unsearched:
        parts.append(f"{unsearched:,} with unknown needs")
    obstacles = sum(view.failures > 0 and view.status != KNOWN and bool(view.obstacle) for view in views)
    if obstacles:
        parts.append(f"{obstacles:,} without a script that shows the failure")
    if states[State.FIXED]:
        parts.append(f"{states[State.FIXED]:,} fixed")
    reasons = Counter(suspect.reason for suspect in standing.unsettled)
    for reason, why in {OUT_OF_TIME: "for lack of time", JOB_KILLED: "because the job was killed each time"}.items():
        if reasons[reason]:
            parts.append(f"{count(reasons[reason], 'suspect')} not confirmed {why}")
    known = [f"{states[KNOWN]:,} known"] if states[KNOWN] else []
    if standing.known_without_finding:
        known.append(f"{count(standing.known_without_finding, 'failure')} as known")
    return ", ".join(parts) + (f" ({', '.join(known)})" if known else "")


def left_out_lines(started: CampaignStarted | None) -> list[str]:
    """Return a line on the calls that `--promised` left out of a campaign, for all backends with the same ones."""
    if started is None or not started.promised:
        return []
    backends: dict[tuple[str, ...], list[str]] = {}
    for backend, words in started.left_out.items():
        backends.setdefault(words, []).append(backend)
    lines = [f"not mentioned by the API of {', '.join(names)}: {', '.join(words)}" for words, names in backends.items()]
    return lines or ["nothing: the APIs mention all forms of arguments, edges and earlier uses"]


def ledger_lines(remarks: Sequence[LedgerRemark]) -> list[str]:
    """Return one line per entry with its title, or one for all numbers with the same remark."""
    by_text: dict[str, list[LedgerRemark]] = {}
    for remark in remarks:
        by_text.setdefault(remark.text, []).append(remark)
    lines = []
    for text, sharing in by_text.items():
        if len(sharing) <= _FEW:
            lines += [f"entry {remark.entry} ({remark.title}): {text}" for remark in sharing]
        else:
            *most, last = (str(remark.entry) for remark in sharing)
            lines.append(f"entries {', '.join(most)} and {last}: {text}")
    return lines
