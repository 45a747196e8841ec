"""The part of the backends' cases that a campaign draws, and runs again. Its plan has it before torch is imported."""

import msgspec


class DrawnPart(msgspec.Struct, frozen=True):
    """Cases of attention in some `modes`, with queries of some `dtypes`: all, if none are named.

    Each has all features in `only` and none of those in `never`, by the words of ledgers. With `promised`, they are
    only those whose calls an API mentions.
    """

    promised: bool = False
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


EVERYTHING = DrawnPart()
