"""A case made of literal calls in words that a person takes in at a glance."""

from textwrap import fill

from attnfuzz.harness.verdict.describe import describe
from attnfuzz.reference.calls import Argument, CallCase, View
from attnfuzz.reference.case_file import AnyCase, case_id

_WIDTH = 80


def describe_any(case: AnyCase, *, notes: bool = True) -> str:
    """A case of either kind in words."""
    return describe_calls(case, notes=notes) if isinstance(case, CallCase) else describe(case)


def describe_calls(case: CallCase, *, notes: bool = True) -> str:
    """Lines for the case and each of its calls, with the shapes of tensors and scalars, and for its notes."""
    lines = [f"case {case_id(case)} for {case.backend}, made of calls"]
    for index, call in enumerate(case.calls):
        label = f"call {index:<5}"
        arguments = ", ".join(f"{name} {_words(value)}" for name, value in call.arguments.items())
        text = f"{call.op}: {arguments}"
        lines.append(
            fill(text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)
        )
    if case.answer is None:
        lines.append("No answer is given: accesses, canaries, inputs and exceptions are judged.")
    if notes:
        lines += [_note(text) for text in case.notes]
    return "\n".join(lines)


def _note(text: str) -> str:
    # Names of folders stay whole, to be searched for.
    return fill(text, _WIDTH, initial_indent="note      ", subsequent_indent=" " * 10, break_long_words=False)


def _words(value: Argument) -> str:
    if isinstance(value, View):
        return str(list(value.shape))
    if isinstance(value, list):
        return f"({', '.join(_words(item) for item in value)})"
    return str(value)
