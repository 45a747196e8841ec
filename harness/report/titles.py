"""Titles: a cause in half a line of words, and the order in which causes are listed."""

import re
from collections.abc import Collection, Sequence
from enum import IntEnum

from attnfuzz.harness.reduce.ablation import feature_named
from attnfuzz.harness.verdict.failures import FAULTS, Kind, Observation
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.harness.verdict.wording import CaseThatFailed, count
from attnfuzz.reference.features.batch import TILE
from attnfuzz.reference.features.row import Feature
from attnfuzz.reference.mistake import Mistake

_MOST_NAMED = 2
"""Features and backends that a title names; of more it gives the number."""

_MOST_IN_A_SLUG = 60

_MISTAKES = {
    Mistake.NO_KEYS: "reads no keys",
    Mistake.KEYS_MISSING: "skips keys",
    Mistake.KEYS_TWICE: "counts keys twice",
    Mistake.KEYS_REPLACED: "reads other keys",
    Mistake.VALUES_MISSING: "skips values",
    Mistake.LENGTH: "takes another KV length",
    Mistake.CAUSAL_LIMIT: "shifts the causal limit",
    Mistake.CAUSAL_ALIGNMENT: "misaligns the causal mask",
    Mistake.MASK_OF_ANOTHER_ROW: "takes the mask of another row",
    Mistake.MASK_IGNORED: "ignores the mask",
    Mistake.MASK_LAYOUT: "reads the mask in another layout",
    Mistake.MASK_OF_ANOTHER_REQUEST: "takes the mask of another request",
    Mistake.WINDOW: "gets the window wrong",
    Mistake.LOGIT_SCALE: "scales the logits wrongly",
    Mistake.OUTPUT_SCALE: "scales the output wrongly",
    Mistake.SOFT_CAP: "applies no soft cap, or a wrong one",
    Mistake.SINK: "leaves out or repeats sinks",
    Mistake.SINK_OF_ANOTHER_HEAD: "takes the sink of another head",
    Mistake.SINK_SCALED: "scales the sinks",
    Mistake.OTHER_ROW: "writes another row's answer",
    Mistake.OTHER_QUERY: "takes another row's query",
    Mistake.OTHER_KV_HEAD: "reads another KV head",
    Mistake.OTHER_CACHE: "confuses keys and values",
    Mistake.OTHER_REQUEST: "reads another request's keys",
    Mistake.LSE_BASE: "returns the LSE in another base",
    Mistake.LSE_SIGN: "negates the LSE",
    Mistake.LSE_OF_A_PART: "returns the LSE of a part",
    Mistake.LSE_LAYOUT: "writes the LSE in another layout",
    Mistake.MERGE_BASE: "merges parts in another base",
    Mistake.MERGE_WEIGHTS: "merges parts with wrong weights",
    Mistake.TABLE_STRIDE: "reads the page table at another stride",
    Mistake.TABLE_ROW: "takes another row of the page table",
    Mistake.PAGE_IDS: "reads other pages",
    Mistake.PAGES_IN_A_ROW: "takes pages to be consecutive",
    Mistake.QUERY_STRIDE: "reads queries at other strides",
    Mistake.CACHE_STRIDE: "reads the KV cache at other strides",
    Mistake.GIVEN_LENGTH: "is given another length",
    Mistake.GIVEN_PAGES: "is given other pages",
    Mistake.GIVEN_ROWS: "is given other rows",
    Mistake.GIVEN_QUERY: "is given other queries",
    Mistake.GIVEN_SCALE: "is given another scale",
    Mistake.GIVEN_WINDOW: "is given another window",
    Mistake.GIVEN_SINKS: "is given other sinks",
}

_KINDS = {
    Kind.HANG: "hangs",
    Kind.OUTPUT_MISMATCH: "computes a wrong output",
    Kind.LSE_MISMATCH: "computes a wrong LSE",
    Kind.EMPTY_ROW: "computes wrong values for rows that see no key",
    Kind.UNWRITTEN: "leaves rows unwritten",
    Kind.WRITE_MISMATCH: "writes wrong bits into {place}",
    Kind.STRAY_WRITE: "writes slots of {place} that must not change",
    Kind.NOT_FINITE: "returns NaN or infinity",
    Kind.CANARY_OVERWRITTEN: "writes outside of {place}",
    Kind.INPUT_MUTATED: "changes its input {place}",
    Kind.PADDING_LEAK: "writes wrong padded rows",
    Kind.REPLAY_DIVERGED: "differs when its CUDA graph is replayed",
    Kind.NONDETERMINISTIC: "differs between two equal runs",
    Kind.METAMORPHIC_MISMATCH: "differs in a related run",
    Kind.UNEXPECTED_REJECTION: "rejects a valid call",
    Kind.CONTRACT_BROKEN: "breaks the contract of its call",
    Kind.RAISED: "raises {place}",
    Kind.RACE: "races in {place}",
    Kind.BARRIER_MISUSED: "misuses a barrier ({place})",
    Kind.UNINITIALIZED_READ: "reads unwritten {place}",
    Kind.WORKER_DIED: "ends its process",
}

_NO_TENSOR = {
    "unknown address": "an unknown address",
    "unmapped memory": "unmapped memory",
    "null pointer": "a null pointer",
}
"""Places of faults that are no tensor."""


class Severity(IntEnum):
    """How bad a failure is, the worst first."""

    WRITES_OUTSIDE = 0
    READS_OUTSIDE = 1
    HANGS = 2
    DIES = 3
    NOT_FINITE = 4
    WRONG = 5
    SMALL_ERROR = 6
    OTHER = 7


SMALL = 10.0
"""Errors below this multiple of a correct kernel's bound are small."""

_OTHER = frozenset({Kind.RAISED, Kind.UNEXPECTED_REJECTION, Kind.CONTRACT_BROKEN})
_WRITES = frozenset({Kind.CANARY_OVERWRITTEN, Kind.STRAY_WRITE, Kind.INPUT_MUTATED})


def severity(observation: Observation) -> Severity:
    """Return how bad a failure is. A wild access that the processor doesn't tell apart counts as a read."""
    kind = observation.kind
    if kind in _WRITES or (kind in FAULTS and _access(observation) == "write"):
        return Severity.WRITES_OUTSIDE
    if kind in FAULTS:
        return Severity.READS_OUTSIDE
    if kind in _OTHER:
        return Severity.OTHER
    fatal = {Kind.HANG: Severity.HANGS, Kind.WORKER_DIED: Severity.DIES, Kind.NOT_FINITE: Severity.NOT_FINITE}
    if kind in fatal:
        return fatal[kind]
    margin = observation.margin
    return Severity.SMALL_ERROR if margin is not None and margin < SMALL else Severity.WRONG


def title(
    observation: Observation,
    needs: Collection[str],
    backends: Sequence[str],
    modes: Sequence[str],
    recurrence: Recurrence | None = None,
) -> str:
    """Describe a failure in half a line: the mistake, with which features, in which backends and modes."""
    act = _act(observation)
    features = [name for name in _telling(needs) if not set(_words(name)) <= set(_words(act))]
    condition = f" with {_listed(features, 'feature', last=' and ')}" if features else ""
    if recurrence is not None and recurrence.depends_on_earlier_cases:
        condition += " after earlier cases"
    # A backend of a file is named by its path.
    names = list(dict.fromkeys(name.rpartition("/")[2] for name in backends))
    where = [_listed(names, "backend")] if names else []
    if modes:
        where.append(modes[0] if len(modes) == 1 else count(len(modes), "mode"))
    return in_a_line(f"{act}{condition} ({', '.join(where)})" if where else f"{act}{condition}")


def title_of(failed: CaseThatFailed, needs: Collection[str] = (), recurrence: Recurrence | None = None) -> str:
    """Describe one failure on record as `title` does."""
    seen = failed.observation
    return title(seen, needs, [failed.case.backend], [seen.mode] if seen.mode else [], recurrence)


def slug(text: str) -> str:
    """Return a title without its parenthesis as part of a file's name: words of letters, digits and "_", hyphenated."""
    words = re.findall(r"[a-z0-9_]+", text.partition(" (")[0].lower())
    kept = ""
    for word in words:
        longer = f"{kept}-{word}" if kept else word
        if len(longer) > _MOST_IN_A_SLUG:
            break
        kept = longer
    return kept


def _act(observation: Observation) -> str:
    kind, place = observation.kind, observation.place
    if observation.mistakes:
        return _MISTAKES[observation.mistakes[0]]
    if kind is Kind.MISALIGNED:
        return f"accesses {_NO_TENSOR.get(place, place)} at a misaligned address"
    if kind in FAULTS:
        return _fault(observation)
    return _KINDS[kind].format(place=place or "a tensor")


def _fault(observation: Observation) -> str:
    verb = {"read": "reads", "write": "writes"}.get(_access(observation), "accesses")
    place = observation.place
    if place in _NO_TENSOR:
        return f"{verb} {_NO_TENSOR[place]}"
    first = observation.message.partition("\n")[0]
    for words, relation in (("before the start", "before"), ("past the end", "past")):
        if words in first:
            return f"{verb} {relation} {place}"
    return f"{verb} pages of {place} that no request owns" if "no request owns" in first else f"{verb} outside {place}"


def _access(observation: Observation) -> str:
    return observation.access.kind if observation.access is not None else "access"


def _telling(needs: Collection[str]) -> list[str]:
    """Return the needed features that say most: clues, else NaN in memory, else the shape."""
    known = [each for each in map(feature_named, needs) if each is not None]
    clues = [each for each in known if each.clue and not each.memory]
    memory, sizes = [each for each in known if each.memory], [each for each in known if each.counts]
    features = clues or memory or sizes
    return [each.name for each in features if not any(_implies(other, each) for other in features)]


_LARGER = {("several pages", "several keys"), (f"more than {TILE} keys", "several keys")}
"""Sizes, each with one that it implies."""


def _implies(feature: Feature, other: Feature) -> bool:
    """Return whether each case with `feature` has `other` too: a window that cuts off keys is a window."""
    shown = bool(feature.shown_by) and feature.shown_by < other.shown_by
    return shown or (feature.name, other.name) in _LARGER


def _words(text: str) -> list[str]:
    """Return the words of `text` of which a title repeats none, in the singular."""
    return [word.removesuffix("s") for word in text.lower().split()]


def _listed(names: Sequence[str], noun: str, *, last: str = ", ") -> str:
    if len(names) > _MOST_NAMED + 1:
        others = count(len(names) - _MOST_NAMED, f"other {noun}")
        return f"{', '.join(names[:_MOST_NAMED])} and {others}"
    return last.join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
