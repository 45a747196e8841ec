"""Which numbers are alike: classes of batch sizes, lengths, head dims and so on, named as on their axis."""

from bisect import bisect_left
from dataclasses import dataclass

from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Latent


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

FACTORS = ("1", "below 1", "above 1")

# Kernels are compiled for some head dims, page sizes and groups of heads, and fall back to others for the rest.
_HEAD_DIMS = (8, 16, 32, 64, 128, 256, 512)
_PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_GROUPS = (1, 2, 3, 4, 5, 8, 16)
_ODD_DIM, _WHOLE_DIM = "another", "another multiple of 16"
_OTHER, _LARGER = "another", "over 16"

HEAD_DIMS = (*map(str, _HEAD_DIMS), _WHOLE_DIM, _ODD_DIM)
PAGE_SIZES = (*map(str, _PAGE_SIZES), _OTHER)
GROUPS = (*map(str, _GROUPS), _OTHER, _LARGER)

VALUE_DIMS = ("as K's", "smaller", "larger")
LATENTS = ("none", "smaller", "rank 512")
KV_DTYPES = ("that of the queries", "float8_e4m3")
KV_LENGTHS = ("0", "1", "within a page", "one page", "a page and one", "whole pages", "several pages")
ACCEPTED = ("one", "part", "all")


def factor_class(factor: float) -> str:
    """One of FACTORS."""
    return "1" if factor == 1 else "below 1" if factor < 1 else "above 1"


def head_dim_class(dim: int) -> str:
    """One of HEAD_DIMS."""
    return str(dim) if dim in _HEAD_DIMS else _ODD_DIM if dim % 16 else _WHOLE_DIM


def page_size_class(size: int) -> str:
    """One of PAGE_SIZES."""
    return str(size) if size in _PAGE_SIZES else _OTHER


def value_dim_class(dim_qk: int, dim_vo: int) -> str:
    """One of VALUE_DIMS: the head dim of V, beside that of K."""
    return "as K's" if dim_qk == dim_vo else "smaller" if dim_vo < dim_qk else "larger"


def latent_class(latent: Latent | None) -> str:
    """One of LATENTS: rank 512 is that of all served models."""
    return "none" if latent is None else "rank 512" if latent.rank == 512 else "smaller"


def kv_dtype_class(dtype: DType) -> str:
    """One of KV_DTYPES."""
    return "float8_e4m3" if dtype is DType.FLOAT8_E4M3 else "that of the queries"


def group_class(group: int) -> str:
    """One of GROUPS."""
    return str(group) if group in _GROUPS else _LARGER if group > _GROUPS[-1] else _OTHER


def kv_length_class(kv_len: int, page_size: int) -> str:
    """One of KV_LENGTHS: where a KV length lies among pages."""
    if kv_len < 2:
        return str(kv_len)
    if kv_len <= page_size:
        return "one page" if kv_len == page_size else "within a page"
    if kv_len == page_size + 1:
        return "a page and one"
    return "several pages" if kv_len % page_size else "whole pages"


def accepted_class(accepted: int, drafts: int) -> str:
    """One of ACCEPTED: how much of its drafts a request accepts."""
    return "all" if accepted == drafts else "one" if accepted == 1 else "part"
