"""Stands for planted defects and their search: defects that are only names, with invented results."""

from attnfuzz.kernels.defects.defect import AttentionDefect, BugClass, Defect, Layer
from attnfuzz.kernels.trtllm.backends import MHA, TrtllmBackend


class NamedDefect(AttentionDefect):
    """A defect of no backend; what it is planted in is correct."""

    def planted(self, name: str) -> TrtllmBackend:
        del name
        return MHA


def defect(name: str = "some", layer: Layer = Layer.MASK) -> Defect:
    """A defect of the backend "fake"."""
    return NamedDefect(
        name=name,
        layer=layer,
        bug_class=BugClass.WINDOW,
        title="Something is wrong.",
        source="PR #1",
        backend="fake",
        plant=lambda backend: backend,
    )
