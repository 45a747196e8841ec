"""What the caller of an attention kernel owes it, one module for each kind of duty."""

from collections.abc import Callable, Iterable, Iterator

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties import fit, launch, lengths, metadata, outputs, pages
from attnfuzz.kernels.entry_points.entry_point import Breach
from attnfuzz.kernels.entry_points.forms import WrongForm

__all__ = ["judged", "of_attention"]

_FORMS = "the shapes and types in FlashInfer's docstring"


def judged(duties: Callable[[], Iterable[Breach]]) -> tuple[Breach, ...]:
    """What `duties` finds, or the argument that is so wrong that nothing else can be judged."""
    try:
        return tuple(duties())
    except WrongForm as wrong:
        return (Breach((wrong.name,), str(wrong), _FORMS),)


def of_attention(call: Attention) -> Iterator[Breach]:
    """The duties that an attention call breaks, the one that explains most first.

    Of a call whose metadata is not what a kernel takes it for, only that is reported: what its lengths and page ids are
    would be a guess.
    """
    misread = tuple(metadata.misread(call))
    if misread:
        yield from misread
        return
    for duty in (
        metadata.batch,
        lengths.queries,
        lengths.keys,
        pages.halves,
        pages.table,
        fit.breaches,
        outputs.breaches,
        launch.workspace,
        launch.factors,
    ):
        yield from duty(call)
