"""A family of ops in a few lines: a type of cases, and a function that launches an op on a case.

Everything else has defaults that follow from the fields of the cases (`reference/simple_case.py`): how they are drawn,
which properties they have, how they become smaller, and their words.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.family import Edit, Family
from attnfuzz.harness.judge.compared import judge_compared
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.interface.compared import ComparedResult
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import case_id, possible
from attnfuzz.reference.case_types import tag_of
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.features.row import FeatureRow, but, of_case, removable, single
from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.reference.simple_case import SimpleCase, choices

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnfuzz.strategies.lean import Lean

S = TypeVar("S", bound=SimpleCase)

Step = Callable[[S, Bench, Op], ComparedResult]
"""Places the tensors of a case, launches the op on them, and returns its results beside the right ones."""

_PLAIN_SIZE = 4
"""The distance of the integers in plain cases from their least value."""


class SimpleCapability(msgspec.Struct, frozen=True, kw_only=True):
    """All cases with the tag `kind`, on a device. A case may take `patience` times as long as others."""

    kind: str
    device: Device = Device.CPU
    patience: float = 1.0

    def why_not(self, case: AnyCase) -> str | None:
        """Return the part of a case that is not supported, or None."""
        return None if tag_of(type(case)) == self.kind else "cases of other ops"


@dataclass(frozen=True)
class SimpleBackend:
    """A backend of a simple family: its op, and the family's step, which makes the op's arguments."""

    name: str
    op: Op
    step: Step[Any]
    capability: SimpleCapability
    contract: Contract = Contract()
    called_as_documented: bool = True

    @property
    def ops(self) -> Mapping[str, Op]:
        """The op by its name."""
        return {self.op.name: self.op}

    def missing(self) -> str | None:
        """Return None: it needs nothing that could be missing."""
        return None

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Return at once: nothing is compiled."""

    def open(self, case: SimpleCase, bench: Bench) -> "SimpleSession":
        """Open a session on a case."""
        return SimpleSession(partial(self.step, case, bench, self.op))


@dataclass(frozen=True)
class SimpleSession:
    """A session of one step."""

    step: Callable[[], ComparedResult]

    def forward(self, index: int) -> ComparedResult:
        """Run the step."""
        del index
        return self.step()


class SimpleFamily(Family[S]):
    """A family of ops that are launched in the same way: backends differ in the function of their op."""

    result_type = ComparedResult
    comparison = "compared with right contents, within the bounds that come with them"
    capability_type = SimpleCapability

    def __init__(self, case_type: type[S], step: Step[S], ops: Mapping[str, Op], device: Device = Device.CPU) -> None:
        """Make a family with a backend for each of `ops`, by its name."""
        self.case_type, self._step = case_type, step
        self.backends: Any = tuple(self.backend(name, op, device) for name, op in ops.items())
        self.table = FeatureTable(*_rows(case_type))

    def backend(self, name: str, op: Op, device: Device = Device.CPU) -> SimpleBackend:
        """Return a backend with another function for the family's op."""
        return SimpleBackend(name, op, self._step, SimpleCapability(kind=tag_of(self.case_type), device=device))

    def runs(self, capability: object) -> bool:
        """Return whether a capability is of this family."""
        return isinstance(capability, SimpleCapability) and capability.kind == tag_of(self.case_type)

    def cases(self, capability: SimpleCapability, backend: str, lean: "Lean") -> "SearchStrategy[S]":
        """Draw all fields with choices, and the seed."""
        from hypothesis import strategies as st  # noqa: PLC0415 - jobs alone draw

        del capability, lean
        drawn: dict[str, SearchStrategy[Any]] = {
            name: st.integers(values.start, values.stop - 1) if isinstance(values, range) else st.sampled_from(values)
            for name, values in choices(self.case_type).items()
        }
        seeds = st.integers(0, (1 << 31) - 1)
        return st.builds(self.case_type, backend=st.just(backend), seed=seeds, **drawn).filter(possible)

    def judge(self, case: object, result: ComparedResult, terms: JudgingTerms) -> Judgement:
        """Compare each tensor with its right contents."""
        return judge_compared(result, terms)

    def record(self, case: object, result: ComparedResult, tracer: FileTracer) -> None:
        """Add the right contents to the trace."""
        tracer.compared(result)

    def edits(self, capability: object) -> tuple[Edit[S], ...]:
        """Return an edit of each field with choices."""
        return tuple(partial(_smaller, name) for name in choices(self.case_type))

    def plain(self, case: S) -> Iterator[S]:
        """Yield the case with all choices at their plainest, then with each."""
        defaults = {name: values[0] for name, values in choices(self.case_type).items()}
        yield case.having(**defaults)
        yield from (case.having(**{name: value}) for name, value in defaults.items() if getattr(case, name) != value)

    def plain_cases(self, capability: object, backend: str) -> Iterator[S]:
        """Yield the plainest case, a larger one, and this with each choice."""
        yield self.case_type(backend=backend)
        sizes: dict[str, Any] = {
            name: values[min(_PLAIN_SIZE, len(values) - 1)]
            for name, values in choices(self.case_type).items()
            if isinstance(values, range)
        }
        larger = self.case_type(backend=backend, **sizes)
        others = (
            larger.having(**{name: value})
            for name, values in choices(self.case_type).items()
            if name not in sizes
            for value in values[1:]
        )
        yield from filter(possible, (larger, *others))

    def describe(self, case: S, *, notes: bool = True) -> str:
        """Name the case, its integers, and all other fields that differ from their defaults."""
        del notes
        fields = sorted(msgspec.structs.fields(case), key=lambda field: field.name in SimpleCase.__struct_fields__)
        words = filter(None, (_words(case, field) for field in fields))
        return fill(
            f"{self.case_type.__struct_config__.tag} case {case_id(case)} for {case.backend}: {', '.join(words)}", 80
        )


def _smaller(name: str, case: S) -> Iterator[S]:
    """Yield a case with plainer values of a field, of an integer at distances that double."""
    values, value = choices(type(case))[name], getattr(case, name)
    if isinstance(values, range):
        span = value - values.start
        plainer = [value - (span >> halvings) for halvings in range(span.bit_length())]
    else:
        plainer = list(values[: values.index(value)])
    return (case.having(**{name: each}) for each in plainer)


def _rows(kind: type[SimpleCase]) -> Iterator[FeatureRow[Any]]:
    """Yield the row of each field with choices other than integers; conditions of the harness are no clues."""
    for name, values in choices(kind).items():
        if not isinstance(values, range):
            words = name.replace("_", " ")
            axis = single(words, tuple(map(_word, values)), partial(_value_of, name))
            plain = {name: values[0]}
            clue = name not in SimpleCase.__struct_fields__
            yield of_case(axis, name, removable(words, but(_word(values[0])), partial(_having, plain), clue=clue))


def _value_of(name: str, case: SimpleCase) -> str:
    return _word(getattr(case, name))


def _having(plain: Mapping[str, Any], case: S) -> list[S]:
    return [case.having(**plain)]


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _words(case: SimpleCase, field: msgspec.structs.FieldInfo) -> str:
    """Return the words for a field of a case, or "" if it goes without saying."""
    value, name = getattr(case, field.name), field.name.replace("_", " ")
    sized = isinstance(choices(type(case)).get(field.name), range)
    if field.name in ("backend", "past") or (value == field.default and not sized):
        return ""
    return name if value is True else f"{name} {_word(value)}"
