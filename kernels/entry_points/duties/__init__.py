"""What the caller of an attention kernel owes it, one module for each kind of duty."""

from collections.abc import Callable, Iterable, Iterator

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties import (
    batches,
    fit,
    halves,
    keys,
    metadata,
    outputs,
    pages,
    queries,
    scales,
    workspaces,
)
from attnfuzz.kernels.entry_points.entry_point import Arguments, Breach
from attnfuzz.kernels.entry_points.forms import WrongForm

__all__ = ["breaches_of", "judged"]

_FORMS = "the shapes and types in FlashInfer's docstring"


def judged(duties: Callable[[], Iterable[Breach]]) -> tuple[Breach, ...]:
    """What `duties` finds, or the argument that is so wrong that nothing else can be judged."""
    try:
        return tuple(duties())
    except WrongForm as wrong:
        return (Breach((wrong.name,), str(wrong), _FORMS),)


def breaches_of(attention: Callable[[Arguments], Attention], arguments: Arguments) -> tuple[Breach, ...]:
    """The duties that an attention call breaks, the one that explains most first.

    Of a call whose metadata is not what a kernel takes it for, only that is told: what its lengths and page ids are
    would be a guess.
    """
    return judged(lambda: _of_attention(attention(arguments)))


def _of_attention(call: Attention) -> Iterator[Breach]:
    misread = tuple(metadata.breaches(call))
    if misread:
        yield from misread
        return
    for duties in (batches, queries, keys, halves, pages, fit, outputs, workspaces, scales):
        yield from duties.breaches(call)
