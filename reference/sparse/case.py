"""Cases of sparse attention: the steps of a server, the ops that run in each, and the contents of inputs."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final
from zlib import crc32

import msgspec

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard, Outputs, ValueFamily
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.validity import ImpossibleCase


class SparseOp(StrEnum):
    """The kinds of ops, in the order in which they run.

    COMPRESS makes one key of the indexer's cache from several tokens, by itself. WRITE quantises new keys into that
    cache. LOGITS scores each key for each query: the sum over heads of weight * relu(q . k). TOP_K lists the positions
    of the k highest scores of each row, and -1 behind them if a row is shorter. TRANSFORM makes slots of the KV cache
    from positions, or offsets into the packed keys of a prefill. ATTENTION attends to the keys at the slots of each
    row's list.
    """

    COMPRESS = "compress"
    WRITE = "write"
    LOGITS = "logits"
    TOP_K = "top-k"
    TRANSFORM = "transform"
    ATTENTION = "attention"


CHAIN: Final = tuple(op for op in SparseOp if op is not SparseOp.COMPRESS)
"""The ops that run one after the other."""


class SparseMode(StrEnum):
    """The kinds of steps.

    PREFILL computes all tokens of its requests, EXTEND a chunk of each. VERIFY has the same number of draft tokens for
    each request, and DECODE one token. An IDLE step has no request.
    """

    PREFILL = "prefill"
    EXTEND = "extend"
    DECODE = "decode"
    VERIFY = "verify"
    IDLE = "idle"

    @property
    def batched(self) -> bool:
        """Whether each request has the same number of queries, so that a step can be captured."""
        return self in (SparseMode.DECODE, SparseMode.VERIFY, SparseMode.IDLE)


class Scores(StrEnum):
    """The contents of scores, or of queries and keys that give such scores.

    NORMAL are different numbers. TIES take few values, and EQUAL one. RISING and FALLING are sorted by position. CLOSE
    differ in their low bits alone. INFINITE have some of -inf, NAN some NaN.
    """

    NORMAL = "normal"
    TIES = "ties"
    EQUAL = "equal"
    RISING = "rising"
    FALLING = "falling"
    CLOSE = "close"
    INFINITE = "infinite"
    NAN = "nan"


OF_PRODUCTS: Final = (Scores.NORMAL, Scores.TIES, Scores.EQUAL)
"""The scores that queries and keys can be drawn for."""


class ListOrder(StrEnum):
    """The order of a row's list, and whether entries repeat. RECENT has the last keys, the others have any."""

    RECENT = "recent"
    SHUFFLED = "shuffled"
    REPEATED = "repeated"
    HOLES = "with -1 between"


class Tail(StrEnum):
    """The entries behind a row's count: -1, ids past the pool, or slots of other keys, of which only counts tell."""

    MINUS_ONE = "minus one"
    PAST_THE_POOL = "past the pool"
    OTHER_SLOTS = "other slots"


class KvFormat(StrEnum):
    """The KV cache of the attention: keys and values of heads, latents, or packed latents.

    PACKED latents have 656 bytes: 512 numbers in e4m3, 4 scales in float32, one for each 128 of them, and 64 rotary
    numbers in bfloat16 (FlashMLA's README, "FP8 KV cache format"). PAGED ones have 448 numbers in e4m3 and 64 rotary
    ones in bfloat16, and the scales of a page's latents follow all of them, 8 bytes each: 7 powers of two in e8m0, one
    for each 64 numbers (vLLM's csrc/cpu/sgl-kernels/flash_mla.cpp, DeepSeek-V4).
    """

    HEADS = "heads"
    LATENT = "latent"
    PACKED = "packed latent"
    PAGED = "packed latent of pages"


class SparseGeometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One layer. `index_heads` and `index_dim` are the indexer's; `top_k` is the length of lists.

    `query_heads`, `kv_heads`, `dim` (of queries and keys) and `value_dim` are those of the attention over a cache in
    `format`. `second` is the length of a second list of each row, in a pool of its own, 0 for none. With `counts`, a
    row's number of entries is an argument of its own. With `ragged`, prefills attend to packed keys, not to slots.
    A compressor pools `ratio` tokens into one key.
    """

    page_size: int = 16
    index_heads: int = 4
    index_dim: int = 32
    top_k: int = 16
    format: KvFormat = KvFormat.HEADS
    query_heads: int = 4
    kv_heads: int = 1
    dim: int = 32
    value_dim: int = 32
    sinks: bool = False
    second: int = 0
    counts: bool = False
    ragged: bool = False
    powers: bool = False
    ratio: int = 4


class SparseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request's number of keys, with those of its `q_len` new tokens, which come last."""

    q_len: int
    kv_len: int


class SparseStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step. `padding` counts requests without keys behind the real ones, or rows of a prefill.

    A `replayed` step runs in a graph that was captured for its mode and size before its first use.
    """

    mode: SparseMode
    requests: tuple[SparseRequest, ...] = ()
    padding: int = 0
    replayed: bool = False

    @property
    def queries(self) -> int:
        """The number of queries of each request of a batched step."""
        return self.requests[0].q_len if self.requests else 1

    @property
    def tokens(self) -> int:
        """The number of queries of all requests."""
        return sum(each.q_len for each in self.requests)

    @property
    def rows(self) -> int:
        """The number of rows with padding."""
        return self.tokens + self.padding * (self.queries if self.mode.batched else 1)


class SparseCase(
    AnyCase, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="sparse"
):
    """Steps of sparse attention, in which the `ops` run one after the other, each on right inputs.

    `scores` and `values` are the contents of the indexer's and of the attention's inputs. Lists that no top-k of the
    case makes have `order` and, behind their ends, `tail`. `slack` pages of the table of a request are not used.
    `backwards` gives requests' pages in descending order. `gap` elements lie between the rows of lists, tables and
    scores. All numbers follow from `seed`.
    """

    backend: str
    ops: tuple[SparseOp, ...]
    steps: tuple[SparseStep, ...]
    geometry: SparseGeometry = SparseGeometry()
    scores: Scores = Scores.NORMAL
    values: ValueFamily = ValueFamily.NORMAL
    order: ListOrder = ListOrder.RECENT
    tail: Tail = Tail.MINUS_ONE
    slack: int = 0
    backwards: bool = False
    gap: int = 0
    seed: int = 0
    guard: Guard = Guard.RIGHT
    outputs: Outputs = Outputs.POISONED
    past: tuple[PastFailure, ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        """The mode of each step."""
        return tuple(step.mode for step in self.steps)

    @property
    def variant(self) -> int:
        """A number by which options of a server are chosen.

        It does not follow from the seed: failures are confirmed with other seeds, on a server with the same options.
        """
        return crc32(f"{self.slack} {self.backwards} {self.guard} {self.scores} {self.values}".encode())

    def has(self, *ops: SparseOp) -> bool:
        """Return whether the case runs all of these ops."""
        return set(ops) <= set(self.ops)

    def validate(self) -> None:
        """Raise ImpossibleCase for the first rule that the case breaks."""
        for field, value, rule in _violations(self):
            raise ImpossibleCase(field, value, rule)


MAX_STEPS: Final = 64
MAX_ROWS: Final = 4096
MAX_KEYS: Final = 1 << 18
MAX_DIM: Final = 1024

FIXED_DIMS: Final = {KvFormat.PACKED: (576, 512), KvFormat.PAGED: (512, 512)}
"""The dims of a key and of its value, in formats that have only these."""


def _violations(case: SparseCase) -> Iterator[tuple[str, object, str]]:
    if not case.ops or list(case.ops) != [each for each in SparseOp if each in case.ops]:
        yield "ops", case.ops, f"must be some of {', '.join(SparseOp)}, in this order, each once"
    yield from _in_bounds(case.geometry)
    yield from _of_attention(case.geometry)
    products = case.has(SparseOp.LOGITS) or case.has(SparseOp.WRITE)
    if products and case.scores not in OF_PRODUCTS:
        yield "scores", case.scores, f"must be one of {', '.join(OF_PRODUCTS)} where queries and keys make them"
    if case.has(SparseOp.COMPRESS) and len(case.ops) > 1:
        yield "ops", case.ops, "must have compress by itself"
    made = case.has(SparseOp.ATTENTION) and not case.has(SparseOp.TRANSFORM)
    if case.tail is Tail.OTHER_SLOTS and not case.geometry.counts:
        yield "tail", case.tail, "needs counts: nothing else ends such a list"
    if not made and case.order is ListOrder.HOLES and not case.has(SparseOp.TRANSFORM):
        yield "order", case.order, "needs lists that no op of the case makes"
    for at, step in enumerate(case.steps):
        yield from ((f"steps[{at}].{field}", value, rule) for field, value, rule in _of_step(step))
    for field, low, high in (("slack", 0, 64), ("gap", 0, 64)):
        if not low <= getattr(case, field) <= high:
            yield field, getattr(case, field), f"must be {low} to {high}"
    for field, low in (("steps", 1), ("past", 0)):
        if not low <= len(getattr(case, field)) <= MAX_STEPS:
            yield field, len(getattr(case, field)), f"must be {low} to {MAX_STEPS}"


def _of_attention(geometry: SparseGeometry) -> Iterator[tuple[str, object, str]]:
    if geometry.query_heads % geometry.kv_heads:
        yield "geometry.query_heads", geometry.query_heads, f"must be a multiple of kv_heads ({geometry.kv_heads})"
    latent = geometry.format is not KvFormat.HEADS
    if latent and (geometry.kv_heads != 1 or geometry.value_dim > geometry.dim):
        yield "geometry.format", geometry.format, "needs one KV head, and values that are the first part of keys"
    if geometry.format in FIXED_DIMS and (geometry.dim, geometry.value_dim) != FIXED_DIMS[geometry.format]:
        yield "geometry.dim", geometry.dim, f"must be dim and value_dim {FIXED_DIMS[geometry.format]} in this format"


def _in_bounds(geometry: SparseGeometry) -> Iterator[tuple[str, object, str]]:
    bounds = {
        "page_size": (1, 1024),
        "index_heads": (1, 256),
        "index_dim": (4, MAX_DIM),
        "top_k": (1, 8192),
        "query_heads": (1, 256),
        "kv_heads": (1, 64),
        "dim": (1, MAX_DIM),
        "value_dim": (1, MAX_DIM),
        "second": (0, 8192),
        "ratio": (1, 1024),
    }
    for field, (low, high) in bounds.items():
        value = getattr(geometry, field)
        if not low <= value <= high:
            yield f"geometry.{field}", value, f"must be {low} to {high}"
    if geometry.index_dim % 4:
        yield "geometry.index_dim", geometry.index_dim, "must be a multiple of 4: scales lie behind a page's keys"


def _of_step(step: SparseStep) -> Iterator[tuple[str, object, str]]:
    if (step.mode is SparseMode.IDLE) is bool(step.requests):
        yield "requests", len(step.requests), "must be none in an idle step, and at least one in any other"
    if step.replayed and not step.mode.batched:
        yield "replayed", True, "needs a mode with the same number of queries for each request"
    if step.padding < 0 or step.rows > MAX_ROWS:
        yield "padding", step.padding, f"must be 0 or more, with at most {MAX_ROWS} rows"
    for at, request in enumerate(step.requests):
        where = f"requests[{at}]"
        if not 1 <= request.q_len <= request.kv_len <= MAX_KEYS:
            yield where, request, f"must have 1 <= q_len <= kv_len <= {MAX_KEYS}"
        if step.mode.batched and request.q_len != step.queries:
            yield where, request, f"must have {step.queries} queries like the first request"
        if step.mode is SparseMode.DECODE and request.q_len != 1:
            yield where, request, "must have one query in a decode step"
        if step.mode is SparseMode.PREFILL and request.q_len != request.kv_len:
            yield where, request, "must have as many queries as keys in a prefill"
