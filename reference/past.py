"""Known failures that a case ignores, so that later steps are tested too."""

import msgspec


class PastFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A failure that does not end a case: its kind, its place, and the entry point and mode of its step.

    The following steps run as if it had not happened: the KV cache has the correct contents.
    """

    kind: str
    place: str
    kernel: str
    mode: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.place} ({', '.join(filter(None, (self.mode, self.kernel)))})"
