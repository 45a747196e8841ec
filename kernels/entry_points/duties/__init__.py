"""The duties of an attention kernel's caller, one module for each kind of duty."""

from collections.abc import Callable, Iterable, Iterator

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties import fit, launch, lengths, masks, metadata, outputs, pages
from attnfuzz.kernels.meaning.entry_point import Breach
from attnfuzz.kernels.meaning.forms import WrongForm

__all__ = ["judged", "of_attention"]

_FORMS = "the shapes and types in FlashInfer's docstring"


def judged(duties: Callable[[], Iterable[Breach]]) -> tuple[Breach, ...]:
    """Collect the breaches that `duties` finds, or a malformed argument that prevents any judgement."""
    try:
        return tuple(duties())
    except WrongForm as wrong:
        return (Breach((wrong.name,), str(wrong), _FORMS),)


def of_attention(call: Attention) -> Iterator[Breach]:
    """Yield the duties that an attention call breaks, the most explanatory one first.

    If the kernel misreads the metadata, only that is reported: lengths and page ids would be guesses.
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
        masks.breaches,
        masks.intervals,
        fit.breaches,
        outputs.breaches,
        launch.workspace,
        launch.counters,
        launch.factors,
    ):
        yield from duty(call)
