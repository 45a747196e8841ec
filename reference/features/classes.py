"""Classes of similar numbers, such as batch sizes, lengths and head dims, with their names on the axes."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.reference.dtypes import DType


@dataclass(frozen=True)
class Classes:
    """Classes of numbers: up to the first of `ends`, then up to each next one, then above the last."""

    ends: tuple[int, ...]
    names: tuple[str, ...]

    def of(self, number: int) -> str:
        """Return the name of the class of `number`."""
        return self.names[bisect_left(self.ends, number)]

    def bounds(self, name: str) -> tuple[int, int | None]:
        """Return the smallest and largest number of a class (None: no largest). ValueError for an unknown name."""
        at = self.names.index(name)
        return (self.ends[at - 1] + 1 if at else 0), (self.ends[at] if at < len(self.ends) else None)


def _ranges(start: int, *ends: int) -> Classes:
    """Return classes of the integers from `start` on, named like "5 to 8"."""
    starts = (start, *(end + 1 for end in ends))
    ranges = zip(starts, ends, strict=False)
    names = (str(low) if low == high else f"{low} to {high}" for low, high in ranges)
    return Classes(ends, (*names, f"over {ends[-1]}"))


BATCHES = _ranges(1, 1, 2, 4, 8, 16, 32)
QUERIES = _ranges(1, 1, 2, 4, 8, 16, 64)
KEYS = _ranges(0, 0, 16, 64, 256, 1000)
DRAFTS = _ranges(1, 2, 3, 4, 5, 6, 7, 8)
KV_HEADS = _ranges(1, 1, 2, 4)
SLACK_COLUMNS = Classes((0, 3), ("none", "a few columns", "many columns"))
GAP_COLUMNS = Classes((0,), ("none", "yes"))
SPARE_PAGES = Classes((0, 1), ("none", "one", "several"))
# Whether the offsets of a pool exceed 2^31 elements, which takes a hole.
POOLS = Classes((0,), ("small", "offsets beyond 2^31"))
# Whether a server that schedules requests has a limit that takes effect.
LIMITS = Classes((0,), ("none", "yes"))
# Slack of a stated maximum: none, rounding, or the rest of the model's context length.
MAXIMA = Classes((0, 999), ("exact", "larger", "a context length"))


@dataclass(frozen=True)
class Kinds:
    """Classes that are not ranges, with a function that returns the name of the class of a value."""

    names: tuple[str, ...]
    of: Callable[..., str]


def _exact(numbers: tuple[int, ...], other: Callable[[int], str], *others: str) -> Kinds:
    """Return a class for each of some numbers, and `others` for the rest."""
    return Kinds((*map(str, numbers), *others), lambda number: str(number) if number in numbers else other(number))


def _kv_length(kv_len: int, page_size: int) -> str:
    if kv_len < 2:
        return str(kv_len)
    if kv_len <= page_size:
        return "one page" if kv_len == page_size else "within a page"
    if kv_len == page_size + 1:
        return "a page and one"
    return "several pages" if kv_len % page_size else "whole pages"


# Kernels are compiled for some head dims, page sizes and groups of heads, and use fallbacks for the rest.
HEAD_DIMS = _exact(
    (8, 16, 32, 64, 128, 256, 512),
    lambda dim: "another" if dim % 16 else "another multiple of 16",
    "another multiple of 16",
    "another",
)
PAGE_SIZES = _exact((1, 2, 4, 8, 16, 32, 64, 128), lambda _: "another", "another")
GROUPS = _exact((1, 2, 3, 4, 5, 8, 16), lambda group: "over 16" if group > 16 else "another", "another", "over 16")
FACTORS = Kinds(
    ("1", "below 1", "above 1", "0", "below 0"),
    lambda factor: (
        "1" if factor == 1 else "above 1" if factor > 1 else "below 1" if factor > 0 else "below 0" if factor else "0"
    ),
)
QUERY_SCALES = Kinds(
    ("1", "below 1", "above 1"), lambda scale: "1" if scale == 1 else "above 1" if scale > 1 else "below 1"
)
# The head dim of V (second argument) relative to that of K (first argument).
VALUE_DIMS = Kinds(
    ("as K's", "smaller", "larger"), lambda qk, vo: "as K's" if qk == vo else "smaller" if vo < qk else "larger"
)
# All served models have rank 512.
LATENTS = Kinds(
    ("none", "smaller", "rank 512"),
    lambda latent: "none" if latent is None else "rank 512" if latent.rank == 512 else "smaller",
)
KV_DTYPES = Kinds(
    ("that of the queries", "float8_e4m3", "nvfp4"),
    lambda dtype: {DType.FLOAT8_E4M3: "float8_e4m3", DType.FLOAT4_E2M1: "nvfp4"}.get(dtype, "that of the queries"),
)
ROTARY_THETAS = Kinds(
    ("none", "10000", "another"),
    lambda rope: "none" if rope is None else "10000" if rope.theta == 10000 else "another",
)
ROTARY_SHIFTS = Kinds(
    ("none", "up to 100", "over 100"),
    lambda rope: "none" if rope is None or not rope.shift else "up to 100" if rope.shift <= 100 else "over 100",
)
# A KV length relative to pages.
KV_LENGTHS = Kinds(
    ("0", "1", "within a page", "one page", "a page and one", "whole pages", "several pages"), _kv_length
)
# The share of its drafts that a request accepts.
ACCEPTED = Kinds(
    ("one", "part", "all"),
    lambda accepted, drafts: "all" if accepted == drafts else "one" if accepted == 1 else "part",
)
