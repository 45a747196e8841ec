"""The base of cases: the properties that a case of any family of ops has."""

from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
from msgspec.structs import replace

from attnfuzz.reference.past import PastFailure

if TYPE_CHECKING:
    from attnfuzz.reference.case import Guard, Outputs


class AnyCase:
    """One test input for `backend`. Its types are frozen structs, whose tag in JSON is `kind`.

    `guard`, `outputs`, `dirty` and `past` are conditions under which the harness runs it, and `late` is whether the
    device begins late. A case with values that follow from a `seed` can be reseeded.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Fields of each type.
        @property
        def backend(self) -> str: ...  # noqa: D102
        @property
        def guard(self) -> Guard: ...  # noqa: D102
        @property
        def outputs(self) -> Outputs: ...  # noqa: D102

    @property
    def past(self) -> tuple[PastFailure, ...]:
        """The known failures after which the case goes on."""
        return ()

    @property
    def late(self) -> bool:
        """Whether the device begins each step after the host has queued all of it."""
        return False

    @property
    def dirty(self) -> bool:
        """Whether the shared memory of a GPU holds NaN before each launch."""
        return True

    @property
    def searchable(self) -> bool:
        """Whether a search can draw and minimize such cases."""
        return True

    @property
    def modes(self) -> tuple[str, ...]:
        """The mode of each step, in order."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise ImpossibleCase for the first rule that the case breaks."""
        raise NotImplementedError

    def reseeded(self, offset: int) -> Self:
        """Return the case with the values of the seed `offset` after its own, or itself if it has no seed."""
        seed = getattr(self, "seed", None)
        return self if seed is None else self.having(seed=(seed + offset) % (1 << 63))

    def having(self, **changes: Any) -> Self:
        """Return the case with other values of these fields."""
        return cast("Self", replace(cast("msgspec.Struct", self), **changes))
