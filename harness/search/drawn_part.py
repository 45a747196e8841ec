"""The part of the backends' cases that a campaign draws, and runs again. Its plan has it before torch is imported."""

import msgspec


class DrawnPart(msgspec.Struct, frozen=True):
    """Cases of attention in some `modes`, with queries of some `dtypes`: all, if none are named.

    With `promised`, only those whose calls an API mentions.
    """

    promised: bool = False
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


EVERYTHING = DrawnPart()
