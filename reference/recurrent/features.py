"""The table of features of recurrent state."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from msgspec.structs import replace

from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.row import Axis, but, flag, grouped, of_case, of_steps, only, removable, single, size
from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.reference.recurrent.case import (
    PaddedRow,
    Stale,
    StateCase,
    StateMode,
    StateOp,
    StateRow,
    StateStep,
    StateValues,
)
from attnfuzz.reference.recurrent.edits import fewer_drafts, with_steps
from attnfuzz.reference.recurrent.recurrence import CHUNK


@dataclass(frozen=True, slots=True)
class StateMoment:
    """A step in its case. `held` are the lanes of earlier steps."""

    case: StateCase
    step: StateStep
    held: frozenset[int]

    def rows(self, mode: StateMode) -> tuple[StateRow, ...]:
        """Return the rows of a step of this mode, none of another."""
        return self.step.rows if self.step.mode is mode else ()


def state_moments(case: StateCase) -> Iterator[StateMoment]:
    """Yield the steps of a case, in order."""
    held: frozenset[int] = frozenset()
    for step in case.steps:
        yield StateMoment(case, step, held)
        held |= {row.lane for row in step.rows}


def _with_rows(case: StateCase, **changes: object) -> StateCase:
    """Return the case with these fields in all rows of prefills."""
    return replace(
        case,
        steps=tuple(replace(step, rows=tuple(replace(row, **changes) for row in step.rows)) for step in case.steps),
    )


_SHORT, _LONG = 4, 257
PROMPTS = ("none", "one", "2 to 4", "below a chunk", "a chunk", "whole chunks", "chunks and a tail", "over 257")
"""The classes of the numbers of tokens of a prefill's request."""


def prompt_length(tokens: int) -> str:
    """Return the class of the number of tokens of a prefill's request."""
    if tokens < CHUNK:
        return PROMPTS[min(tokens, 2) + (tokens > _SHORT)]
    if tokens > _LONG:
        return PROMPTS[-1]
    return PROMPTS[4] if tokens == CHUNK else PROMPTS[6] if tokens % CHUNK else PROMPTS[5]


def _lengths(moment: StateMoment) -> set[str]:
    return {prompt_length(row.tokens) for row in moment.rows(StateMode.PREFILL)}


def _past(moment: StateMoment) -> set[str]:
    """Return how requests of a prefill begin: new, on slots of a former one, or with a state."""
    return {
        "continued" if row.initial else "handed on" if row.lane in moment.held else "new"
        for row in moment.rows(StateMode.PREFILL)
    }


def accepted_class(accepted: int, drafts: int) -> str:
    """Return the class of the number of accepted tokens of a verify."""
    if accepted < 2:
        return "one" if accepted else "none"
    return "all" if accepted > drafts else "some"


def _accepted(moment: StateMoment) -> set[str]:
    return {accepted_class(row.accepted, moment.case.drafts) for row in moment.rows(StateMode.VERIFY)}


def _is_ragged(moment: StateMoment) -> bool:
    return len({row.tokens for row in moment.rows(StateMode.VERIFY)}) > 1


def _mixed(moment: StateMoment) -> bool:
    """Return whether a prefill continues a request by one token beside others."""
    rows = moment.rows(StateMode.PREFILL)
    return len(rows) > 1 and any(row.initial and row.tokens == 1 for row in rows)


def _without_empty(case: StateCase) -> Iterable[StateCase]:
    steps = tuple(replace(step, rows=tuple(row for row in step.rows if row.tokens)) for step in case.steps)
    yield with_steps(case, steps)


def _all_new(case: StateCase) -> Iterable[StateCase]:
    steps = tuple(
        replace(step, rows=tuple(replace(row, initial=False) for row in step.rows if row.tokens))
        if step.mode is StateMode.PREFILL
        else step
        for step in case.steps
    )
    yield replace(case, steps=steps)


def _all_continued(case: StateCase) -> Iterable[StateCase]:
    yield _with_rows(case, initial=True)


def _short(case: StateCase) -> Iterable[StateCase]:
    for tokens in (1, 2, CHUNK - 1):
        yield replace(
            case,
            steps=tuple(
                replace(step, rows=tuple(replace(row, tokens=min(row.tokens, tokens)) for row in step.rows))
                for step in case.steps
            ),
        )


def _uniform(case: StateCase) -> Iterable[StateCase]:
    for tokens in (case.drafts + 1, 1):
        yield replace(
            case,
            steps=tuple(
                replace(step, rows=tuple(replace(row, tokens=tokens) for row in step.rows))
                if step.mode is StateMode.VERIFY
                else step
                for step in case.steps
            ),
        )


def _accept_one(case: StateCase) -> Iterable[StateCase]:
    yield _with_rows(case, accepted=1)


def _unpadded(case: StateCase) -> Iterable[StateCase]:
    steps = tuple(replace(step, padding=0) for step in case.steps if step.rows)
    if steps:
        yield replace(case, steps=steps)


def _eager(case: StateCase) -> Iterable[StateCase]:
    yield replace(case, steps=tuple(replace(step, replayed=False) for step in case.steps))


def _single_steps(case: StateCase) -> Iterable[StateCase]:
    for step in case.steps:
        yield with_steps(case, (step,))


def _single_requests(case: StateCase) -> Iterable[StateCase]:
    for lane in range(case.lanes):
        steps = tuple(replace(step, rows=tuple(row for row in step.rows if row.lane == lane)) for step in case.steps)
        yield with_steps(case, tuple(step for step in steps if step.rows))


def _ungrouped(case: StateCase) -> Iterable[StateCase]:
    shape = case.shape
    yield replace(case, shape=replace(shape, value_heads=shape.heads))
    yield replace(case, shape=replace(shape, heads=shape.value_heads))


def _one_head(case: StateCase) -> Iterable[StateCase]:
    shape = case.shape
    yield replace(case, shape=replace(shape, heads=1, value_heads=shape.value_heads // shape.heads))


def _padded(moment: StateMoment) -> str:
    if not moment.step.padding:
        return "none"
    return "tokens" if moment.step.mode is StateMode.PREFILL else f"{moment.case.padded_row} rows"


_COUNTS = ("none", "one", "2 to 3", "4 to 8", "over 8")


def counted(number: int) -> str:
    """Return the class of a number of requests or drafts."""
    return next((name for name, most in zip(_COUNTS, (0, 1, 3, 8), strict=False) if number <= most), _COUNTS[-1])


DIMS = ("8", "16", "32", "64", "128", "multiple of 16", "multiple of 8", "another")
"""The classes of dims: the usual ones, and the larger of 8 and 16 that divides another."""


def dim_class(dim: int) -> str:
    """Return the class of a head's dim, or of a number of channels."""
    if str(dim) in DIMS:
        return str(dim)
    return next((f"multiple of {by}" for by in (16, 8) if dim % by == 0), DIMS[-1])


def taps(width: int) -> str:
    """Return the class of a convolution's number of taps."""
    return str(width) if width <= 4 else "over 4"


def _set(**changes: object) -> Callable[[StateCase], Iterator[StateCase]]:
    return lambda case: iter((case.having(**changes),))


STATE_TABLE = FeatureTable(
    of_case(single("state op", tuple(StateOp), lambda case: case.op.value), "op"),
    of_steps(single("state mode", tuple(StateMode), lambda moment: moment.step.mode.value), "steps"),
    of_case(
        single("state steps", ("one", "several"), lambda case: "one" if len(case.steps) == 1 else "several"),
        "steps",
        removable("several state steps", only("several"), _single_steps),
    ),
    of_steps(
        single("requests", _COUNTS, lambda moment: counted(len(moment.step.rows))),
        "steps",
        removable("several requests of a state step", only(*_COUNTS[2:]), _single_requests),
        removable("no requests", only("none"), _unpadded),
    ),
    of_steps(
        Axis("prompt", PROMPTS, _lengths, total=False),
        "steps",
        removable("requests without tokens", only("none"), _without_empty),
        size("a chunk or more", only(*PROMPTS[4:]), _short),
    ),
    of_steps(
        Axis("begin", ("new", "handed on", "continued"), _past, total=False),
        "steps",
        removable("continued state", only("continued"), _all_new),
        removable("new requests", only("new", "handed on"), _all_continued, usual=True),
    ),
    of_steps(
        flag("mixed", _mixed),
        "steps",
    ),
    *grouped(
        "drafts",
        of_case(
            single("state drafts", _COUNTS, lambda case: counted(case.drafts)),
            "drafts",
            removable("state drafts", but("none"), lambda case: list(fewer_drafts(case))[:1], usual=True),
        ),
        of_steps(
            Axis("accepted", ("none", "one", "some", "all"), _accepted, total=False),
            "steps",
            removable("several accepted", only("some", "all"), _accept_one),
            removable("none accepted", only("none"), _accept_one),
        ),
        of_steps(flag("ragged verify", _is_ragged), "steps", removable("ragged verify", only("yes"), _uniform)),
    ),
    *grouped(
        "padding of a state step",
        of_steps(
            single("padded", ("none", "tokens", *(f"{each} rows" for each in PaddedRow)), _padded),
            "steps padded_row",
            removable("padded state step", but("none"), _unpadded),
        ),
        of_steps(
            flag("replayed", lambda moment: moment.step.replayed),
            "steps",
            removable("replayed state step", only("yes"), _eager),
        ),
    ),
    *grouped(
        "pool of states",
        of_case(
            flag("moved", lambda case: case.move), "move", removable("moved states", only("yes"), _set(move=False))
        ),
        of_case(flag("gap", lambda case: case.gap), "gap", removable("gap between slots", only("yes"), _set(gap=0))),
        of_case(
            flag("scattered", lambda case: case.scattered),
            "scattered",
            removable("scattered slots", only("yes"), _set(scattered=False)),
        ),
        of_case(
            single("stale", tuple(Stale), lambda case: case.stale.value),
            "stale",
            removable("nan in stale slots", only("nan"), _set(stale=Stale.NUMBERS), memory="stale slots"),
        ),
    ),
    *grouped(
        "heads of states",
        of_case(
            single(
                "groups",
                ("one head", "heads", "groups"),
                lambda case: (
                    "groups"
                    if case.shape.value_heads > case.shape.heads
                    else "heads"
                    if case.shape.heads > 1
                    else "one head"
                ),
            ),
            "shape",
            removable("groups of value heads", only("groups"), _ungrouped),
            size("several key heads", only("heads"), _one_head),
        ),
    ),
    of_case(single("state key dim", DIMS, lambda case: dim_class(case.shape.key_dim)), "shape"),
    of_case(single("state value dim", DIMS, lambda case: dim_class(case.shape.value_dim)), "shape"),
    of_case(single("taps", ("2", "3", "4", "over 4"), lambda case: taps(case.shape.width)), "shape"),
    *grouped(
        "layer options",
        of_case(
            flag("normed", lambda case: case.normed),
            "normed",
            removable("normed keys", only("yes"), _set(normed=False)),
        ),
        of_case(
            flag("strided", lambda case: case.strided),
            "strided",
            removable("strided state inputs", only("yes"), _set(strided=False)),
        ),
        of_case(
            flag("gated", lambda case: case.gated), "gated", removable("gated output", only("yes"), _set(gated=False))
        ),
        of_case(
            flag("biased", lambda case: case.biased),
            "biased",
            removable("biased convolution", only("yes"), _set(biased=False)),
        ),
        of_case(
            flag("activated", lambda case: case.activated),
            "activated",
            removable("activated convolution", only("yes"), _set(activated=False)),
        ),
        *(
            of_case(
                flag(name, attrgetter(field)),
                field,
                removable(f"{name} of a layer", only("yes"), _set(**{field: False})),
            )
            for name, field in (
                ("transposed", "transposed"),
                ("narrow", "narrow"),
                ("no skip", "no_skip"),
                ("no step bias", "no_step_bias"),
                ("no softplus", "no_softplus"),
                ("columns", "columns"),
            )
        ),
    ),
    of_case(
        single("input dtype", ("float32", "bfloat16", "float16"), lambda case: case.dtype.value),
        "dtype",
        removable("16-bit state inputs", but("float32"), _set(dtype=DType.FLOAT32), clue=False),
    ),
    of_case(
        single("state dtype", ("float32", "bfloat16", "float16"), lambda case: case.state_dtype.value),
        "state_dtype",
        removable("16-bit states", but("float32"), _set(state_dtype=DType.FLOAT32)),
    ),
    of_case(
        single("state values", tuple(StateValues), lambda case: case.values.value),
        "values",
        removable("other state values", but("normal"), _set(values=StateValues.NORMAL), clue=False),
    ),
    of_case(
        single("state guard", tuple(Guard), lambda case: case.guard.value),
        "guard",
        removable("left guard of states", only("left"), _set(guard=Guard.RIGHT), clue=False),
    ),
    of_case(
        single("state outputs", tuple(Outputs), lambda case: case.outputs.value),
        "outputs",
        removable("stale state outputs", only("stale"), _set(outputs=Outputs.POISONED), clue=False),
    ),
    moments=state_moments,
)
"""The features of recurrent state."""
