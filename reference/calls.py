"""Cases made of literal kernel calls, with the arguments that a planner produced but without the planner.

A step describes a server's requests; a call gives a kernel's arguments, which may be malformed in ways that no step can
express. Exported scripts, traces and hand-written reproducers are made of calls.
"""

import base64
import math
import zlib
from collections.abc import Iterator, Mapping

import msgspec
import torch

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType

_BYTES_AT_A_TIME = 1 << 20
_SAMPLES, _SAMPLE_BYTES = 8, 1 << 10
_LONG_BYTES = 1 << 17
"""Minimum length for which sampling is worthwhile."""


class Drawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Content drawn from a seed: normal numbers of this mean and standard deviation, rounded to the buffer's dtype."""

    seed: int
    mean: float = 0.0
    std: float = 1.0


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One allocation of `size` elements of `dtype`, or, in a call's `writes`, `size` elements from `offset` on.

    Its content is `values` (integers), `zeros`, `bits` (base64 of the zlib-compressed bytes, little-endian) or `drawn`
    (floating point numbers). A buffer without content is initialized like an output. In a file, `payload` names an
    entry of the safetensors file next to the case. A buffer on the `host` is passed in the host's memory, which no
    kernel accesses.

    The elements of a `hole`, from its first to before its second number, have addresses, but no memory, and no content.
    Only traces have holes, for scripts; cases that are run have none.
    """

    name: str
    dtype: DType
    size: int
    offset: int = 0
    values: tuple[int, ...] | None = None
    zeros: bool = False
    bits: str | None = None
    drawn: Drawn | None = None
    payload: str | None = None
    hole: tuple[int, int] | None = None
    host: bool = False


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A tensor in a buffer: shape, strides and offset in elements, and `dtype` if it differs from the buffer's."""

    buffer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    dtype: DType | None = None


Argument = View | list[View] | int | float | str | bool | None

NUMBERS = {"math.nan": math.nan, "math.inf": math.inf, "-math.inf": -math.inf}
"""Arguments that JSON has no number for."""


REPLAY = "replay"
"""The op of a call that replays a graph."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One launch: a kernel's entry point by FlashInfer's name, and its arguments.

    `writes` are changes to buffers since the previous call that were not made by a kernel. The outputs in `returned`,
    "out" or "lse", are not passed, but copied from the result.

    A constructor or a copy `makes` an object of that name; a method is a call `on` an object. It already has the
    tensors in `held`: they are guarded and compared like others, but not passed. A call with a `graph` is captured into
    the graph of that name instead of made, together with its neighbours of the same graph, or, for REPLAY, replays it.
    One that runs `apart` does so on a stream of its own. For functions and classes of a library, a string like
    "torch.float16" is that dtype; for any function, one of `NUMBERS` is that number.
    """

    op: str
    arguments: dict[str, Argument] = {}
    writes: tuple[Buffer, ...] = ()
    returned: tuple[str, ...] = ()
    on: str = ""
    makes: str = ""
    held: tuple[str, ...] = ()
    graph: str = ""
    apart: bool = False


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The attention expected for one request, and the place of its output.

    Rows of `out` from `first_row` on are the attention of `query` [q_len, q_heads, dim] to `key` and `value`, both
    [kv_len, kv_heads, dim]. `mask` is bool [q_len, kv_len], True where a query sees a key; without it, the mask is
    causal.
    """

    first_row: int
    query: View
    key: View
    value: View
    mask: View | None = None


class CallAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The correct contents of `out` [rows, q_heads, dim] and `lse` [rows, q_heads] after the calls.

    `writes` are writes to rows of no request after the last call. The other fields have the meaning that they have in
    `attnfuzz.kernels.interface.backend.Output` and the geometry.
    """

    out: View
    requests: tuple[Expected, ...]
    bmm1_scale: float
    bmm2_scale: float
    lse: View | None = None
    sinks: View | None = None
    window_left: int = -1
    soft_cap: float = 0.0
    roundings: int = 1
    writes: tuple[Buffer, ...] = ()


class ExpectedWrite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The correct contents of one tensor of a KV cache after the calls.

    `view` [pages, slots, heads, dim] is the whole tensor. The new tokens at `places` (int64 [4, n]: page, slot,
    request, token) must be between `low` and `high` [n, heads, dim], or bitwise equal to `low` if there is no `high`.
    Slots in `free` (int64 [2, m]: page, slot) may have any contents; all others must not change. Bytes are NVFP4, two
    numbers in each, with bounds in e4m3. Swizzled scales of blocks are [pages, slots / 4, 4, heads, 4, dim / 4].
    """

    name: str
    view: View
    places: View
    low: View
    free: View
    high: View | None = None


class ExpectedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The correct contents of a tensor after the calls: those of `right`, in the shape and dtype of `view`.

    No element is off by more than its `bound`, floating point numbers that broadcast to the shape: infinite where
    anything is allowed. Without it, all bits are right.
    """

    name: str
    view: View
    right: View
    bound: View | None = None


class ExpectedLists(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Lists that must have the highest scores of their rows after the calls, in any order.

    `view` int [rows, k] holds positions in a row, or names of positions, and -1 behind the entries of a row that has
    fewer scores. Row r has the next lengths[r] of the `scores` float32 [n], and of the `names` int64 [n] if positions
    have names. `lengths` is int64 [rows].
    """

    name: str
    view: View
    scores: View
    lengths: View
    names: View | None = None


class CallCase(
    AnyCase,
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="calls",
):
    """Literal calls on guarded buffers.

    `backend` provides the kernels, the contract and the noise model. Without an `answer`, `written` tensors of a KV
    cache, `expected` tensors, or `lists`, only accesses, canaries, inputs and exceptions are judged. `mode` is the mode
    of the step that the calls came from, or "". With `dirty`, the shared memory of a GPU holds NaN before each call.
    Each of `notes` is a sentence about a part of recorded calls that could not be restored or was changed on purpose.
    """

    backend: str
    buffers: tuple[Buffer, ...]
    calls: tuple[Call, ...]
    answer: CallAnswer | None = None
    written: tuple[ExpectedWrite, ...] = ()
    expected: tuple[ExpectedTensor, ...] = ()
    lists: tuple[ExpectedLists, ...] = ()
    mode: str = ""
    guard: Guard = Guard.RIGHT
    outputs: Outputs = Outputs.POISONED
    dirty: bool = False
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether the calls have right results, so that more than their accesses is judged."""
        return self.answer is not None or bool(self.written or self.expected or self.lists)

    @property
    def searchable(self) -> bool:
        """Never: calls are recorded."""
        return False

    @property
    def modes(self) -> tuple[str, ...]:
        """The mode, since all calls are one step."""
        return (self.mode,)

    def validate(self) -> None:
        """Raise ImpossibleCase for the first rule that the case breaks."""
        from attnfuzz.reference.call_validity import validate_calls  # noqa: PLC0415 - it imports this module

        validate_calls(self)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """All writes between the calls and after the last one."""
        between = tuple(write for call in self.calls for write in call.writes)
        return between + (self.answer.writes if self.answer else ())


def literal_number(number: float) -> Argument:
    """Return a number as an argument of a call."""
    return number if math.isfinite(number) else next(name for name, each in NUMBERS.items() if str(each) == str(number))


def named_views(arguments: Mapping[str, Argument]) -> Iterator[tuple[str, View]]:
    """Yield every tensor argument with its name. Members of a list are called "name[0]", "name[1]"."""
    for name, value in arguments.items():
        if isinstance(value, View):
            yield name, value
        elif isinstance(value, list):
            yield from ((f"{name}[{index}]", member) for index, member in enumerate(value))


def views_of_case(case: CallCase) -> Iterator[View]:
    """Yield every view of the calls, and of their right results."""
    for call in case.calls:
        yield from (view for _, view in named_views(call.arguments))
    answer = case.answer
    if answer is not None:
        yield from (view for view in (answer.out, answer.lse, answer.sinks) if view is not None)
        for expected in answer.requests:
            yield from (expected.query, expected.key, expected.value)
            if expected.mask is not None:
                yield expected.mask
    for written in case.written:
        yield from (written.view, written.places, written.low, written.free)
        if written.high is not None:
            yield written.high
    for tensor in case.expected:
        yield from (view for view in (tensor.view, tensor.right, tensor.bound) if view is not None)
    for lists in case.lists:
        yield from (view for view in (lists.view, lists.scores, lists.lengths, lists.names) if view is not None)


def viewed(buffer: torch.Tensor, view: View) -> torch.Tensor:
    """Return the tensor that `view` describes, which shares the memory of its buffer's elements [size]."""
    elements = buffer if view.dtype is None else buffer.view(view.dtype.torch_dtype)
    return elements.as_strided(view.shape, view.stride, view.offset)


def pack(content: bytes) -> str:
    """Compress bytes to text for `Buffer.bits`."""
    # Level 1, because most content is random numbers, which no level compresses.
    packer = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY if _is_random(content) else zlib.Z_DEFAULT_STRATEGY)
    return base64.b64encode(packer.compress(content) + packer.flush()).decode()


def _is_random(content: bytes) -> bool:
    """Return whether content is long and hardly repeats in samples: searching it for repetitions would be slow."""
    if len(content) < _LONG_BYTES:
        return False
    starts = range(0, len(content), len(content) // _SAMPLES)
    samples = b"".join(content[start : start + _SAMPLE_BYTES] for start in starts)
    return len(zlib.compress(samples, 1)) > len(samples) // 2


def unpack(text: str, limit: int) -> bytes:
    """Undo `pack`. Raises ValueError if the text is damaged or expands to more than `limit` bytes."""
    return b"".join(_unpacked(text, limit))


def _unpacked(text: str, limit: int) -> Iterator[bytes]:
    """Yield the bytes in pieces, to stop before a few kB of text expand to gigabytes."""
    stream, left = zlib.decompressobj(), limit
    try:
        rest, piece = base64.b64decode(text, validate=True), b"any"
        while not stream.eof and (piece or rest):
            piece = stream.decompress(rest, _BYTES_AT_A_TIME)
            rest = stream.unconsumed_tail
            left -= len(piece)
            if left < 0:
                break
            yield piece
    except (zlib.error, ValueError) as error:
        raise ValueError(f"damaged content: {error}") from error
    if left < 0:
        raise ValueError(f"content of more than {limit} bytes")
    if not stream.eof:
        raise ValueError("damaged content: it ends too early")


def check_content(buffer: Buffer) -> None:
    """Raise ValueError as `content_of` does, but without creating drawn, zero or compressed content."""
    if buffer.payload is None and buffer.values is None:
        if buffer.drawn is not None:
            _check_drawn(buffer.drawn, buffer.dtype)
        elif buffer.bits is not None and not buffer.zeros:
            _check_length(sum(map(len, _unpacked(buffer.bits, _nbytes(buffer)))), buffer)
    else:
        content_of(buffer)


def content_of(buffer: Buffer) -> torch.Tensor | None:
    """Return the content of a buffer, [size] in its dtype, or None if it is initialized like an output.

    Raises:
        ValueError: the content does not fit the buffer, or is still in another file.
    """
    if buffer.hole is not None:
        raise ValueError(f"most of {buffer.name} has no memory")
    if buffer.payload is not None:
        raise ValueError(f"its content is in a file next to the case, as {buffer.payload}: load the case from its file")
    dtype = buffer.dtype.torch_dtype
    if buffer.values is not None:
        return _numbers(buffer.values, buffer)
    if buffer.drawn is not None:
        return _draw(buffer.drawn, buffer.size, buffer.dtype)
    if buffer.zeros:
        return torch.zeros(buffer.size, dtype=dtype)
    if buffer.bits is None:
        return None
    data = bytearray(unpack(buffer.bits, _nbytes(buffer)))
    _check_length(len(data), buffer)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)


def _numbers(values: tuple[int, ...], buffer: Buffer) -> torch.Tensor:
    if len(values) != buffer.size:
        raise ValueError(f"{len(values)} values for a size of {buffer.size}")
    try:
        return torch.tensor(values, dtype=buffer.dtype.torch_dtype)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"values that are no {buffer.dtype}: {error}") from error


def _nbytes(buffer: Buffer) -> int:
    return buffer.size * buffer.dtype.itemsize


def _check_length(nbytes: int, buffer: Buffer) -> None:
    if nbytes != _nbytes(buffer):
        raise ValueError(f"{nbytes} bytes of content for a size of {buffer.size} {buffer.dtype}")


def _check_drawn(drawn: Drawn, dtype: DType) -> None:
    if not dtype.torch_dtype.is_floating_point:
        raise ValueError(f"normal numbers can't be {dtype}")
    if not 0 <= drawn.seed < 1 << 63:
        raise ValueError("the seed of drawn numbers must be 0 to 2**63 - 1")


def _draw(drawn: Drawn, size: int, dtype: DType) -> torch.Tensor:
    _check_drawn(drawn, dtype)
    generator = torch.Generator().manual_seed(drawn.seed)
    normal = torch.randn(size, generator=generator, dtype=torch.float32)
    return normal.mul_(drawn.std).add_(drawn.mean).to(dtype.torch_dtype)
