"""Stands for planted defects and their search: defects that are only names, with invented results."""

from attnfuzz.kernels.defects.defect import AttentionDefect, BugClass, Defect, Layer


def defect(name: str = "some", layer: Layer = Layer.MASK) -> Defect:
    """A defect of the backend "fake"."""
    return AttentionDefect(
        name=name,
        layer=layer,
        bug_class=BugClass.WINDOW,
        title="Something is wrong.",
        source="PR #1",
        backend="fake",
        plant=lambda backend: backend,
    )
