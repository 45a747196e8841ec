"""Argument forms: passing a call's arguments in the forms that a case asks for, instead of plainly.

Tensors get their form when they are placed, so that a graph reads them too; numbers and options at the launch
(`form_tables.py`).

A step whose forms the API does not promise may be rejected by an exception. Then the same session makes the step once
more without these forms, on the same objects, and it must work. Promised forms are kept: otherwise, one that raises
would be hidden by those that may raise.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from attnfuzz.kernels.arguments.form_tables import AT_LAUNCH, OPTIONS, PLACED, RETURNED, dense, head_gaps, heads_first
from attnfuzz.kernels.interface.backend import (
    NO_HOLE,
    Bench,
    Fill,
    Launcher,
    Memory,
    NotRefused,
    Op,
    Result,
    Session,
    Unsupported,
)
from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule, ArgumentStanding
from attnfuzz.reference.case import Case, Launch
from attnfuzz.reference.edges import edges_of

_COMPUTED = frozenset({"out", "out_p"})


def opened_in_forms(
    open_session: Callable[[Case, Bench], Session], case: Case, bench: Bench, rules: Sequence[ArgumentRule]
) -> Session:
    """Open a session whose calls have the forms of `case`; `rules` has those of its backend."""
    chosen = {rule.form: rule for rule in rules if rule.form in case.arguments}
    if not chosen:
        return open_session(case, bench)
    forms = _Forms(chosen)
    memory = _FormedMemory(bench.memory, forms, case)
    launcher = _FormingLauncher(bench.launcher, memory, forms)
    session = open_session(case, replace(bench, memory=memory, launcher=cast("Launcher", launcher)))
    return _FormedSession(session, case, bench.launcher, forms)


class _Forms:
    """The chosen forms, those still in use, and those of a step's launches.

    `shown` are those of the launches that make a difference: strides of an axis with one entry do not.
    """

    def __init__(self, chosen: Mapping[ArgumentForm, ArgumentRule]) -> None:
        self.chosen = chosen
        self.in_use = dict(chosen)
        self.planned: set[ArgumentForm] = set()
        self.launched: set[ArgumentForm] = set()
        self.shown: set[ArgumentForm] = set()
        self.in_graphs: set[ArgumentForm] = set()
        self.shown_in_graphs: set[ArgumentForm] = set()

    def begin_step(self, *, replays: bool) -> None:
        """Forget the forms of the previous step.

        A replay starts with the forms of the graphs, because some graphs run their launches only on replay.
        """
        self.planned.clear()
        self.launched = set(self.in_graphs) if replays else set()
        self.shown = set(self.shown_in_graphs) if replays else set()

    def end_capture(self) -> None:
        """Record the forms of the graph's launches."""
        self.in_graphs |= self.launched
        self.shown_in_graphs |= self.shown

    @property
    def dropped(self) -> bool:
        """Whether a step was rejected."""
        return len(self.in_use) < len(self.chosen)

    def drop_uncertain(self) -> None:
        """Keep only those in use that the API promises."""
        promised = ArgumentStanding.PROMISED
        self.in_use = {form: rule for form, rule in self.chosen.items() if rule.standing is promised}

    def uncertain(self) -> list[ArgumentRule]:
        """Return the rules of the forms of the step's plans and launches that the API does not promise."""
        rules = (rule for form, rule in self.chosen.items() if form in self.planned | self.launched)
        return [rule for rule in rules if rule.standing is not ArgumentStanding.PROMISED]

    def refused(self) -> list[ArgumentRule]:
        """Return the rules of refused forms of the step's launches. A plan may accept a form that its run refuses."""
        rules = (rule for form, rule in self.chosen.items() if form in self.shown)
        return [rule for rule in rules if rule.standing is ArgumentStanding.REFUSED]


def _words(rules: Iterable[ArgumentRule]) -> str:
    return ", ".join(rule.form for rule in rules)


class _FormedSession:
    """A session that repeats a rejected step without the forms that may be rejected."""

    def __init__(self, session: Session, case: Case, launcher: Launcher, forms: _Forms) -> None:
        self._session, self._case, self._launcher, self._forms = session, case, launcher, forms

    def __getattr__(self, name: str) -> Any:
        # A writer before attention needs the pool of its session.
        return getattr(self._session, name)

    def forward(self, index: int) -> Result | None:
        """See `Session`.

        Raises:
            NotRefused: a launch of the step accepted a form that its API refuses.
            Unsupported: a graph with a form that is not promised was rejected, or comes after a step that was. It would
                hold copies of tensors that have a form.
        """
        forms, launch = self._forms, self._case.steps[index].launch
        captures, replays = launch is Launch.CAPTURE, launch is Launch.REPLAY
        if captures and forms.dropped:
            raise Unsupported(f"a graph after a refusal of {_words(forms.chosen.values())}")
        forms.begin_step(replays=replays)
        try:
            result = self._session.forward(index)
        except Unsupported:
            raise
        except Exception as error:
            # An API may refuse by any exception.
            in_graph = captures or (replays and bool(forms.in_graphs))
            if (forms.dropped and not in_graph) or not forms.uncertain():
                if not in_graph:
                    self._note_promise(error, index)
                raise
            forms.drop_uncertain()
            if in_graph:
                raise Unsupported(f"a graph with {_words(forms.uncertain())} is refused: {error}") from error
            return self._again(index)
        if captures:
            forms.end_capture()
        if not forms.dropped and result is not None and (refused := forms.refused()):
            raise NotRefused(f"{refused[0].form}: accepted, although the API refuses it ({refused[0].source})")
        return result

    def _again(self, index: int) -> Result | None:
        """Make a step once more, only with the forms that are promised."""
        self._forms.begin_step(replays=False)
        self._launcher.make_again()
        try:
            return self._session.forward(index)
        except Unsupported:
            raise
        except Exception as error:
            self._note_promise(error, index)
            raise

    def _note_promise(self, error: Exception, index: int) -> None:
        """Note on an error of a step with edges, with only promised forms in use, whether these forms caused it."""
        forms = self._forms
        if not edges_of(self._case) or not forms.planned | forms.launched:
            return
        forms.in_use = {}
        # An API may refuse an edge by any exception.
        with suppress(Exception):
            self._session.forward(index)
            error.add_note(_BROKEN_PROMISE)


_BROKEN_PROMISE = "the step works without the forms that the API promises"


def breaks_a_promise(error: BaseException) -> bool:
    """Return whether a step with an edge has raised this error because of a promised form, not of the edge."""
    return _BROKEN_PROMISE in getattr(error, "__notes__", ())


class _FormedMemory:
    """Memory that places tensors in their forms, and finds the form of a tensor again."""

    def __init__(self, memory: Memory, forms: _Forms, case: Case) -> None:
        self._memory, self._forms = memory, forms
        self.direct, self.at_once, self.overwrite = memory.direct, memory.at_once, memory.overwrite
        self.holds, self.renew = memory.holds, memory.renew
        self._of_tensors = {form: PLACED[form].of(case) for form in forms.chosen if form in PLACED}
        self._placed: list[tuple[int, int, ArgumentForm, torch.dtype]] = []

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        stride: Sequence[int] | None = None,
        fill: Fill = Fill.POISON,
        hole: range = NO_HOLE,
    ) -> torch.Tensor:
        """See `Memory`. Strides that the case has chosen otherwise, and holes, keep the plain form."""
        form = None if hole else self._form_of(name, shape, stride)
        if form is None:
            return self._memory.tensor(name, shape, dtype, stride=stride, fill=fill, hole=hole)
        how = self._of_tensors[form]
        strides = stride if how.strides is None else how.strides(shape)
        return self._kept(self._memory.tensor(name, shape, how.dtype or dtype, stride=strides, fill=fill), form, dtype)

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """See `Memory`."""
        form = self._form_of(name, value.shape, stride)
        if form is None:
            return self._memory.copy(name, value, stride=stride)
        how = self._of_tensors[form]
        strides = stride if how.strides is None else how.strides(value.shape)
        formed = value.to(how.dtype or value.dtype) if how.values is None else how.values(value)
        return self._kept(self._memory.copy(name, formed, stride=strides), form, value.dtype)

    def form_of(self, value: Any) -> ArgumentForm | None:
        """Return the form of a placed tensor, or of a part of it, or None if it is plain."""
        found = self._found(value)
        return found and found[0]

    def plain(self, name: str, value: Any, kept: Collection[ArgumentForm] = ()) -> Any:
        """Return the plain form of a value: a copy of a tensor whose form is not among those to be `kept`."""
        if isinstance(value, tuple):
            return tuple(self.plain(name, each, kept) for each in value)
        found = self._found(value)
        if found is None or found[0] in kept:
            return value
        # An axis of one entry is innermost among equal strides, as in a tensor that never had gaps.
        order = sorted(range(value.dim()), key=lambda axis: (-value.stride(axis), value.shape[axis] == 1))
        return self._memory.copy(name, value.to(found[1]), stride=dense(value.shape, order, {}))

    def _form_of(self, name: str, shape: Sequence[int], stride: Sequence[int] | None) -> ArgumentForm | None:
        if 0 in shape:
            # A tensor without elements has no address by which it could be found.
            return None
        for form, how in self._of_tensors.items():
            if form not in self._forms.in_use or (how.strides is not None and stride):
                # A step was rejected, or the case has chosen other strides.
                continue
            if name in how.names and len(shape) >= (2 if how.strides in (heads_first, head_gaps) else 1):
                return form
        return None

    def _found(self, value: Any) -> tuple[ArgumentForm, torch.dtype] | None:
        """Return the form of a tensor, and the dtype of its plain form."""
        if isinstance(value, torch.Tensor) and value.numel():
            at = value.data_ptr()
            for start, end, form, dtype in self._placed:
                if start <= at < end:
                    return form, dtype
        return None

    def _kept(self, placed: torch.Tensor, form: ArgumentForm, dtype: torch.dtype) -> torch.Tensor:
        if placed.numel():
            last = sum((size - 1) * stride for size, stride in zip(placed.shape, placed.stride(), strict=True))
            self._placed.append((placed.data_ptr(), placed.data_ptr() + (last + 1) * placed.itemsize, form, dtype))
        return placed


class _FormingLauncher:
    """A launcher whose calls have the chosen forms."""

    def __init__(self, launcher: Launcher, memory: _FormedMemory, forms: _Forms) -> None:
        self._launcher, self._memory, self._forms = launcher, memory, forms

    def __getattr__(self, name: str) -> Any:
        # Journaling and reporting are the same.
        return getattr(self._launcher, name)

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """See `Launcher`. Returned outputs are copied to the tensors that were placed for them."""
        kept = () if op.helps else self._forms.in_use
        if op.helps or self._forms.dropped:
            arguments = {
                name: value if name in op.writes else self._memory.plain(name, value, kept)
                for name, value in arguments.items()
            }
        if not kept:
            return self._launcher.launch(op, **arguments)
        formed, forms, shown = self._formed(arguments)
        returned = frozenset(RETURNED[form] for form in forms if form in RETURNED)
        (self._forms.planned if op.plans else self._forms.launched).update(forms)
        if not op.plans:
            self._forms.shown.update(shown)
        if returned:
            op = returning(op, returned)
        return self._launcher.launch(op, **formed)

    def _formed(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[ArgumentForm], set[ArgumentForm]]:
        """Return the arguments in their forms, the forms of this call, and the forms that make a difference."""
        formed = dict(arguments)
        placed = [(form, value) for value in _flat(arguments.values()) if (form := self._memory.form_of(value))]
        unseen = {form for form, _ in placed}.difference(form for form, value in placed if _differs(form, value))
        forms = [form for form, _ in placed]
        for form in self._forms.in_use:
            if (how := AT_LAUNCH.get(form)) is not None:
                for name in how.names.intersection(formed):
                    changed = how.change(formed, name, self._memory)
                    forms += [form] * (changed is not formed)
                    formed = changed
            elif form in OPTIONS and _COMPUTED.intersection(formed):
                name, value = OPTIONS[form]
                formed[name] = value
                forms.append(form)
            elif form in RETURNED and RETURNED[form] in formed:
                forms.append(form)
        return formed, forms, set(forms) - unseen


def _differs(form: ArgumentForm, placed: torch.Tensor) -> bool:
    """Return whether a function can distinguish a tensor in this form from a plain one."""
    how = PLACED[form]
    if how.values is not None:
        return bool(placed.isnan().any())
    return how.dtype is not None or how.as_queries or not placed.is_contiguous()


def returning(op: Op, names: frozenset[str]) -> Op:
    """Return an op without the outputs `names`, to which the returned tensors are copied."""
    return replace(op, function=partial(_returning, op.function, names), returned=names)


def _returning(function: Callable[..., Any], names: frozenset[str], **arguments: Any) -> Any:
    """Call without the outputs `names`, and copy the returned tensors to them."""
    result = function(**{name: value for name, value in arguments.items() if name not in names})
    made = result if isinstance(result, tuple) else (result,)
    for name, value in zip(("out", "lse"), made, strict=False):
        if name in names:
            arguments[name].copy_(value)
    return result


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value
