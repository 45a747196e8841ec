"""Which numbers are alike: classes of batch sizes, lengths, head dims and so on, named as on their axis."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.reference.dtypes import DType


@dataclass(frozen=True)
class Classes:
    """Classes of numbers: those up to the first of `ends`, the others up to the next, ..., those beyond the last."""

    ends: tuple[int, ...]
    names: tuple[str, ...]

    def of(self, number: int) -> str:
        """The name of the class of `number`."""
        return self.names[bisect_left(self.ends, number)]

    def bounds(self, name: str) -> tuple[int, int | None]:
        """The least and the largest number of a class; None where there is no largest. ValueError for no class."""
        at = self.names.index(name)
        return (self.ends[at - 1] + 1 if at else 0), (self.ends[at] if at < len(self.ends) else None)


def _ranges(start: int, *ends: int) -> Classes:
    """Classes named like "5 to 8" of the whole numbers from `start` on."""
    starts = (start, *(end + 1 for end in ends))
    ranges = zip(starts, ends, strict=False)
    names = (str(low) if low == high else f"{low} to {high}" for low, high in ranges)
    return Classes(ends, (*names, f"over {ends[-1]}"))


BATCHES = _ranges(1, 1, 2, 4, 8, 16, 32)
QUERIES = _ranges(1, 1, 2, 4, 8, 16)
KEYS = _ranges(0, 0, 16, 64, 256, 1000)
DRAFTS = _ranges(1, 2, 3, 4, 5, 6, 7, 8)
KV_HEADS = _ranges(1, 1, 2, 4)
SLACK_COLUMNS = Classes((0, 3), ("none", "a few columns", "many columns"))
GAP_COLUMNS = Classes((0,), ("none", "yes"))
SPARE_PAGES = Classes((0, 1), ("none", "one", "several"))
# What is added to a stated maximum: nothing, rounding, or all that the model's context length leaves.
MAXIMA = Classes((0, 999), ("exact", "larger", "a context length"))


@dataclass(frozen=True)
class Kinds:
    """Kinds of something that are no ranges, and the name of the kind of one."""

    names: tuple[str, ...]
    of: Callable[..., str]


def _exact(numbers: tuple[int, ...], other: Callable[[int], str], *others: str) -> Kinds:
    """Each of some numbers by itself, and `others` by the kind of number that they are."""
    return Kinds((*map(str, numbers), *others), lambda number: str(number) if number in numbers else other(number))


def _kv_length(kv_len: int, page_size: int) -> str:
    if kv_len < 2:
        return str(kv_len)
    if kv_len <= page_size:
        return "one page" if kv_len == page_size else "within a page"
    if kv_len == page_size + 1:
        return "a page and one"
    return "several pages" if kv_len % page_size else "whole pages"


# Kernels are compiled for some head dims, page sizes and groups of heads, and fall back to others for the rest.
HEAD_DIMS = _exact(
    (8, 16, 32, 64, 128, 256, 512),
    lambda dim: "another" if dim % 16 else "another multiple of 16",
    "another multiple of 16",
    "another",
)
PAGE_SIZES = _exact((1, 2, 4, 8, 16, 32, 64, 128), lambda _: "another", "another")
GROUPS = _exact((1, 2, 3, 4, 5, 8, 16), lambda group: "over 16" if group > 16 else "another", "another", "over 16")
FACTORS = Kinds(
    ("1", "below 1", "above 1"), lambda factor: "1" if factor == 1 else "below 1" if factor < 1 else "above 1"
)
# Of the head dim of V, given that of K first.
VALUE_DIMS = Kinds(
    ("as K's", "smaller", "larger"), lambda qk, vo: "as K's" if qk == vo else "smaller" if vo < qk else "larger"
)
# Rank 512 is that of all served models.
LATENTS = Kinds(
    ("none", "smaller", "rank 512"),
    lambda latent: "none" if latent is None else "rank 512" if latent.rank == 512 else "smaller",
)
KV_DTYPES = Kinds(
    ("that of the queries", "float8_e4m3"),
    lambda dtype: "float8_e4m3" if dtype is DType.FLOAT8_E4M3 else "that of the queries",
)
# Where a KV length lies among pages of a size.
KV_LENGTHS = Kinds(
    ("0", "1", "within a page", "one page", "a page and one", "whole pages", "several pages"), _kv_length
)
# How much of its drafts a request accepts.
ACCEPTED = Kinds(
    ("one", "part", "all"),
    lambda accepted, drafts: "all" if accepted == drafts else "one" if accepted == 1 else "part",
)
