"""The vocabulary of cases. A Case consists of ints, enums and a seed, from which tensor elements follow.

A case is one test input: it is immutable, fully determines the work of a backend, and its id is a hash of its content.
`attnfuzz.reference.validity` defines the possible combinations; `attnfuzz.reference.case_file` reads and writes cases.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.rope import Rope
from attnfuzz.reference.serving import ServedQueries, Serving, SharedKeys


class Mode(StrEnum):
    """The purpose of a step, in the terms of SGLang's ForwardMode.

    All but DRAFT_DECODE are one forward pass. A draft decode is several consecutive forward passes of a draft model,
    planned together; each pass decodes one token of each request.
    """

    DECODE = "decode"
    DRAFT_DECODE = "draft_decode"
    TARGET_VERIFY = "target_verify"
    DRAFT_EXTEND = "draft_extend"
    DRAFT_EXTEND_V2 = "draft_extend_v2"
    EXTEND = "extend"
    CHUNKED_PREFILL = "chunked_prefill"

    @property
    def uniform(self) -> bool:
        """Whether all requests have the same number of query tokens."""
        return self in (Mode.DECODE, Mode.DRAFT_DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2)

    @property
    def speculative(self) -> bool:
        """Whether requests have up to `tokens_per_request` query tokens. Only these modes can be captured."""
        return self.uniform or self is Mode.DRAFT_EXTEND

    @classmethod
    def of_kernels(cls) -> tuple["Mode", ...]:
        """Return the modes of one forward pass, which are the modes that a kernel without a server can distinguish."""
        return tuple(mode for mode in cls if mode is not Mode.DRAFT_DECODE)

    def stride(self, drafts: int) -> int:
        """Return the query stride of a step on a server that verifies `drafts` draft tokens per request.

        The first of the draft tokens is the last known token, and the draft model's extend produces the second. The
        draft model decodes the others, at least one.
        """
        match self:
            case Mode.DECODE:
                return 1
            case Mode.DRAFT_DECODE:
                return max(1, drafts - NOT_DECODED)
            case _:
                return drafts if self.speculative else 0


NOT_DECODED = 2
"""Number of draft tokens of a verify step that are not decoded by the draft model."""

SPECULATIVE = tuple(mode for mode in Mode.of_kernels() if mode.speculative)
"""The speculative modes of one forward pass, in declaration order."""


class Launch(StrEnum):
    """How a step reaches the device. A capture records launches without running them."""

    EAGER = "eager"
    CAPTURE = "capture"
    REPLAY = "replay"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a step.

    `slot` is the number of its sequence: requests of different steps with one slot have the same KV. `q_len` is its
    number of query tokens (in a draft extend, its accept length) and `kv_len` its number of keys after the step has
    stored its new tokens; either may be 0. The last query is aligned to the last key.
    """

    slot: int
    q_len: int
    kv_len: int


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One attention forward, or `tokens_per_request` of them in a draft decode.

    `tokens_per_request` is the query stride of the speculative modes (1 for decode, the number of decodes for draft
    decode, and the number of draft tokens otherwise), 0 for the others. `padded_tokens` is the number of query rows
    passed to the backend: after planning, servers raise it to a multiple of the attention group's size, to a
    data-parallel group's maximum, or to the size of a graph. A capture has no requests: it is recorded on padding
    alone. Nor has an idle step, which a rank runs because others have requests: only padding, even in a replay, or no
    rows at all.
    """

    mode: Mode
    requests: tuple[Request, ...]
    padded_tokens: int
    tokens_per_request: int = 0
    launch: Launch = Launch.EAGER

    @property
    def drafts(self) -> int:
        """The draft tokens per request of a server that runs such a step, or 0 if the step does not determine it."""
        if self.mode is Mode.DECODE or not self.mode.speculative:
            return 0
        return self.tokens_per_request + (NOT_DECODED if self.mode is Mode.DRAFT_DECODE else 0)

    @property
    def tokens(self) -> int:
        """The query tokens of real requests."""
        return sum(request.q_len for request in self.requests)

    @property
    def padded_batch(self) -> int:
        """The number of rows of the padded batch. Padding an extend adds tokens, not requests."""
        if self.mode.uniform or self.launch is not Launch.EAGER:
            return self.padded_tokens // self.tokens_per_request
        return len(self.requests)

    @property
    def idle(self) -> bool:
        """Whether the step runs without requests."""
        return not self.requests and self.launch is not Launch.CAPTURE

    @property
    def padded(self) -> bool:
        """Whether the backend gets query rows that belong to no request."""
        return self.padded_tokens > self.tokens or self.padded_batch > len(self.requests)

    @property
    def longest_prefix(self) -> int:
        """The largest number of keys before a request's new tokens."""
        return max((request.kv_len - request.q_len for request in self.requests), default=0)

    def chunks(self, capacity: int) -> int:
        """Return the number of prefix chunks of a prefill. Requests share `capacity` tokens equally, at least 1."""
        share = max(1, capacity // max(len(self.requests), 1))
        return max(0, -(-self.longest_prefix // share))


def steps_in_chunks(steps: Iterable[Step], geometry: Geometry) -> list[Step]:
    """Return the steps whose prefixes are cut into chunks: chunked prefills, and every prefill of latents."""
    return [
        step
        for step in steps
        if step.requests
        and (step.mode is Mode.CHUNKED_PREFILL or (geometry.latent is not None and not step.mode.speculative))
    ]


class PageOrder(StrEnum):
    """The order in which sequences get pages of the pool. REVERSED begins with the last page, as free lists do.

    With REUSED, a sequence's pages are freed after its last step, and new sequences get the most recently freed pages.
    """

    IDENTITY = "identity"
    REVERSED = "reversed"
    SHUFFLED = "shuffled"
    INTERLEAVED = "interleaved"
    SHARED_PREFIX = "shared_prefix"
    REUSED = "reused"


class TableTail(StrEnum):
    """Contents of a page table past a request's pages. POISON is the id of a page that belongs to no sequence."""

    ZEROS = "zeros"
    STALE = "stale"
    MINUS_ONE = "minus_one"
    POISON = "poison"


class Unused(StrEnum):
    """Contents of pool memory that no request of a step uses: NaN, or numbers like those of earlier requests."""

    NAN = "nan"
    NUMBERS = "numbers"


class Tombstone(StrEnum):
    """The entry of a page table for a page that has left the window. With NONE, pages are kept.

    Otherwise, the layer has a pool of its own, smaller than that of layers without a window, in which pages that left
    the window are free for other requests. Entries are those of the full pool's table, translated. NULL is the dummy
    page, as in SGLang (slot 0 of `full_to_swa_index_mapping`, python/sglang/srt/mem_cache/allocator/swa.py, `free_swa`)
    and vLLM (`null_block`, vllm/v1/core/single_type_kv_cache_manager.py, `remove_skipped_blocks`). MINUS_ONE is not the
    id of any page, as in SGLang's unified pool (PR #35933). STALE is the previous id of the page, as in the rows that
    vLLM's workers keep (issue #42273).
    """

    NONE = "none"
    NULL = "null"
    MINUS_ONE = "minus_one"
    STALE = "stale"


class OtherGroup(StrEnum):
    """The geometry of the other group of layers that share the pool. Its pages have the same number of bytes.

    SAME is the case's own geometry. LONGER_PAGES has twice as many tokens per page and half the head dims, MORE_HEADS
    half as many tokens and twice the KV heads; SHORTER_PAGES and FEWER_HEADS are their inverses, so the case's own
    group can be either of the two. vLLM gives the pages of all groups the same number of bytes
    (vllm/v1/core/kv_cache_utils.py, `unify_kv_cache_spec_page_size`) and allocates them from one list, so the page ids
    of the groups interleave. In Gemma 4, 16 tokens of window layers and 64 tokens of full layers take 64 KiB (kvcached
    PR #396).
    """

    NONE = "none"
    SAME = "same"
    LONGER_PAGES = "longer_pages"
    MORE_HEADS = "more_heads"
    SHORTER_PAGES = "shorter_pages"
    FEWER_HEADS = "fewer_heads"


class Pages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layout of the KV pool. Page 0 is the servers' dummy page, which no sequence owns.

    It is finite, unless a kernel gets lists of page ids that don't name it.

    `spare` pages of the pool have no owner. `table_slack` columns are added to the page table's width. `hole` pages
    after the dummy page have addresses but no memory, which makes the offsets to all others large. `behind` is the
    contents of the slots after the last key of each request, to the end of its pages, and `free` the contents of pages
    that belong to no request of the step. A layer with a window has a separate pool unless `tombstone` is NONE. With
    `window_tail`, new tokens on pages that leave the window within the step are not stored and have the slots of padded
    tokens, as after SGLang's `alloc_extend_swa_tail`; such a step only writes. `other_group` owns pages between those
    of the case.
    """

    order: PageOrder = PageOrder.IDENTITY
    tail: TableTail = TableTail.ZEROS
    spare: int = 1
    table_slack: int = 0
    hole: int = 0
    behind: Unused = Unused.NAN
    free: Unused = Unused.NAN
    tombstone: Tombstone = Tombstone.NONE
    window_tail: bool = False
    other_group: OtherGroup = OtherGroup.NONE


class PaddedSlot(StrEnum):
    """The slot in the pool that a writer of the KV cache gets for padded tokens.

    DUMMY is the first slot of the dummy page, as in SGLang. NOWHERE is -1, which is skipped, as in vLLM. RESERVED is
    the same slot as DUMMY, but is skipped, as in SGLang since 0.5.17: padding reads it, so no NaN may be written there.
    """

    DUMMY = "dummy"
    NOWHERE = "nowhere"
    RESERVED = "reserved"


class ValueFamily(StrEnum):
    """Recipe of the values of q, K and V (see `attnfuzz.reference.values`)."""

    NORMAL = "normal"
    PEAKED = "peaked"
    CONSTANT = "constant"
    ONE_HOT = "one_hot"
    LARGE_LOGITS = "large_logits"
    ZEROS = "zeros"
    PROBE = "probe"
    DISCRETE = "discrete"
    FAINT = "faint"
    STAGNANT = "stagnant"
    EXTREME = "extreme"
    UNEVEN = "uneven"


class Magnitude(StrEnum):
    """Powers of two on the numbers of q, K and V (see `attnfuzz.reference.magnitudes`). PLAIN numbers fit fp8 e4m3.

    LARGE keys and values of 32 bits and bf16 are beyond the range of fp16, TINY ones below it; those of fp16 are near
    its limits. MIXED values have large, plain, tiny and subnormal elements within a row.
    """

    PLAIN = "plain"
    LARGE = "large"
    TINY = "tiny"
    MIXED = "mixed"


class Granularity(StrEnum):
    """The part of a KV cache that shares one scale: the whole tensor, a KV head, or a head of one token.

    With BLOCK, each 16 elements of a head of one token share a scale, and the cache is NVFP4
    (`attnfuzz.reference.nvfp4`).
    """

    TENSOR = "tensor"
    HEAD = "head"
    TOKEN_HEAD = "token_head"
    BLOCK = "block"

    @property
    def words(self) -> str:
        """The part in words."""
        return self.value.replace("_", " and ")

    @property
    def computed(self) -> bool:
        """Whether a writer of the cache computes the scales from the numbers that it stores."""
        return self in (Granularity.TOKEN_HEAD, Granularity.BLOCK)


class BlockScales(StrEnum):
    """Memory layout of block scales: linear like the cache, or swizzled for the scales of values."""

    LINEAR = "linear"
    SWIZZLED = "swizzled"


class Scales(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors besides 1 / sqrt(head_dim_qk): `softmax` on the logits, `k` and `v` to dequantise the KV cache.

    With a finer `granularity` than TENSOR, K and V have tensors of scales (`attnfuzz.reference.cache_scales`). They
    include `k` and `v`, except for scales of blocks, whose layout is `blocks`.
    """

    softmax: float = 1.0
    k: float = 1.0
    v: float = 1.0
    granularity: Granularity = Granularity.TENSOR
    blocks: BlockScales = BlockScales.LINEAR


class QueryView(StrEnum):
    """Memory layout of q: contiguous, a slice of a fused [q|k|v] row, or with a gap after each head."""

    CONTIGUOUS = "contiguous"
    FUSED_QKV = "fused_qkv"
    HEAD_GAP = "head_gap"


class KvView(StrEnum):
    """Memory layout of K and V: two pools, one pool [page, 2, ...], or SGLang's token-major pool viewed as pages."""

    SEPARATE = "separate"
    PAIRED = "paired"
    TOKEN_MAJOR = "token_major"


class Views(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Strides of a backend's tensors. `table_gap` columns lie between the rows of the page table.

    With `value_strides`, the new values of a writer have other strides than its new keys, which are those of queries:
    a server may make keys anew, and leave values in the rows of a fused projection.
    """

    query: QueryView = QueryView.CONTIGUOUS
    kv: KvView = KvView.SEPARATE
    table_gap: int = 0
    value_strides: bool = False


class Workspace(StrEnum):
    """State of the workspace. DIRTY is garbage wherever the contract does not ask for zeros at first use.

    On a GPU, there is NaN in shared memory, too.
    """

    FRESH = "fresh"
    REUSED = "reused"
    DIRTY = "dirty"


class Outputs(StrEnum):
    """Contents of output buffers before the kernel runs: a NaN sentinel, or plausible numbers from an earlier call."""

    POISONED = "poisoned"
    STALE = "stale"


class Guard(StrEnum):
    """The edge of every tensor that touches an unmapped page."""

    RIGHT = "right"
    LEFT = "left"


class Mask(StrEnum):
    """The keys that a query sees, within the window if there is one (drawn by `attnfuzz.reference.masks`).

    CAUSAL: the keys up to its own. FULL: all keys of its request, up to `Geometry.window_right` after its own.
    INTERVALS: an interval of keys, whose first and last key are no earlier than those of the query before
    (bidirectional attention among the tokens of an image, in Gemma 3). TREE: in a verify step, the prefix and its
    ancestors among the draft tokens, which form a tree (topk > 1, as in Medusa and SGLang's EAGLE); other steps are
    causal. CUSTOM: the keys of a boolean mask, with rows that see few, some or all keys, but at least one. EMPTY_ROWS:
    like CUSTOM, but some rows see no keys.
    """

    CAUSAL = "causal"
    FULL = "full"
    INTERVALS = "intervals"
    TREE = "tree"
    CUSTOM = "custom"
    EMPTY_ROWS = "empty_rows"


class Pace(StrEnum):
    """When the device begins a step: as soon as work is queued, or LATE, after the host has queued all of it.

    The device is late if the host runs ahead (overlap scheduling) or other processes use the GPU. Reusing host memory
    before the device has copied it then fails every time, otherwise only by chance (mini-sglang PR 103).
    """

    PROMPT = "prompt"
    LATE = "late"


class Case(
    AnyCase, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="steps"
):
    """One test input of attention, or of a writer of its KV cache: a geometry, and the steps to run, in order.

    `max_len_slack` is added to every stated maximum length. `chunk_capacity` is the number of prefix tokens that a
    chunked prefill attends to at once, over all requests (SGLang: 128 Ki; smaller here, so that small cases have many
    chunks). With `rope`, a writer of the KV cache rotates new keys and their queries before it stores them. `arguments`
    are the argument forms other than the plain one, and `life` the earlier uses of the objects that run a step. A
    `relation` adds a second, related run (`attnfuzz.reference.related`).

    For a backend that schedules requests itself, within the limits of `serving`, a step is a demand: its sequences must
    reach these lengths, in as many forwards as the backend chooses. `shared_keys` configures a backend whose ranks
    share the keys of each request.

    A case ends with the first step that fails, unless all failures of a forward are among `past`.
    """

    backend: str
    geometry: Geometry
    steps: tuple[Step, ...]
    pages: Pages = Pages()
    padded_slot: PaddedSlot = PaddedSlot.DUMMY
    rope: Rope | None = None
    values: ValueFamily = ValueFamily.NORMAL
    magnitude: Magnitude = Magnitude.PLAIN
    scales: Scales = Scales()
    queries: ServedQueries = ServedQueries()
    views: Views = Views()
    workspace: Workspace = Workspace.FRESH
    outputs: Outputs = Outputs.POISONED
    max_len_slack: int = 0
    chunk_capacity: int = 256
    guard: Guard = Guard.RIGHT
    pace: Pace = Pace.PROMPT
    arguments: tuple[ArgumentForm, ...] = ()
    life: tuple[EarlierUse, ...] = ()
    mask: Mask = Mask.CAUSAL
    serving: Serving = Serving()
    shared_keys: SharedKeys = SharedKeys()
    seed: int = 0
    past: tuple[PastFailure, ...] = ()
    relation: Relation | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The mode of each step."""
        return tuple(step.mode.value for step in self.steps)

    @property
    def late(self) -> bool:
        """Whether its pace is late."""
        return self.pace is Pace.LATE

    @property
    def dirty(self) -> bool:
        """Whether its workspace is dirty."""
        return self.workspace is Workspace.DIRTY

    def validate(self) -> None:
        """Raise ImpossibleCase for the first rule that the case breaks."""
        from attnfuzz.reference.validity import validate  # noqa: PLC0415 - it imports this module

        validate(self)

    def slot_lengths(self) -> dict[int, int]:
        """Return the number of keys of each sequence, as the function `slot_lengths` does."""
        return slot_lengths(self.steps)


def slot_lengths(steps: Iterable[Step]) -> dict[int, int]:
    """Return the number of keys of each sequence, by ascending slot: its maximum `kv_len` over the steps."""
    lengths: dict[int, int] = {}
    for step in steps:
        for request in step.requests:
            lengths[request.slot] = max(lengths.get(request.slot, 0), request.kv_len)
    return dict(sorted(lengths.items()))
