"""The kernels that stand behind FlashInfer's functions while a release runs."""

from dataclasses import dataclass

from attnfuzz.kernels.backend import Op


@dataclass(frozen=True)
class KernelsBelow:
    """`ops` by the names of FlashInfer's functions.

    Those in `real` are FlashInfer's own and get what a release hands over, as it is; the others are this project's and
    stand in for kernels that the device has not. `roundings` says how often their outputs are rounded to the query's
    dtype.
    """

    ops: tuple[Op, ...]
    real: frozenset[str] = frozenset()
    roundings: int = 1
