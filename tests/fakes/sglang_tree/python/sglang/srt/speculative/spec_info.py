"""What speculative decoding tells an attention backend."""

from enum import Enum, auto


class SpecInputType(Enum):
    """What a step is speculated with."""

    EAGLE_DRAFT = auto()
    EAGLE_VERIFY = auto()


class SpeculativeAlgorithm(Enum):
    """How a server speculates."""

    NONE = auto()
    EAGLE = auto()

    @classmethod
    def from_string(cls, name: str | None) -> "SpeculativeAlgorithm":
        """The algorithm of a server's argument."""
        return cls[name or "NONE"]

    def is_none(self) -> bool:
        """Whether it does not."""
        return self is SpeculativeAlgorithm.NONE
