"""torch's own attention on CPUs: flex_attention compiled by inductor, and SDPA of nested tensors.

The fused kernel of scaled_dot_product_attention is the backend `torch_sdpa`. torch.nn.attention.varlen has no kernel
for CPUs (torch 2.13: aten::_flash_attention_forward is not registered for them): its backends are for GPUs.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.kernels.functions.function_lives import CALLED
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.requests import dense_requests, gathered
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse, promised, unsaid
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import FLOATS, Capability
from attnfuzz.reference.case import Mask, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP, NoiseModel


def _bucket(dtype: DType, head_dim: int, *heads: tuple[int, int], **more: Any) -> Bucket:
    return Bucket(
        dtype=dtype,
        kv_dtype=dtype,
        head_dim_qk=head_dim,
        head_dim_vo=head_dim,
        heads=heads,
        page_sizes=(16, 1),
        layouts=(KvLayout.NHD,),
        **more,
    )


SUMMED = 2.0**-20
"""Root mean square error of a logit whose products are added up one after another in fp32: 88 equal ones are off by
2^-18.7. Relative to |q| |k| and the scale.
"""


def fused_noise(dtype: DType) -> NoiseModel:
    """Return the model of torch's fused kernels for CPUs, for any length of a logit's sum."""
    return replace(NoiseModel.torch_sdpa_cpu(dtype.torch_dtype), logits=SUMMED)


def unfused_noise(dtype: DType) -> NoiseModel:
    """Return the model of attention as single operations on tensors of `dtype`, to which each result is rounded.

    Logits, and weights after their division: small ones are lost by an absolute error. The softmax is in fp32. So are
    _scaled_dot_product_attention_math (torch/nested/_internal/sdpa.py) and eager_paged_attention_forward (transformers,
    integrations/eager_paged.py). NoiseModel.rounded_logits is this for a GPU.
    """
    rounded, roundoff = NoiseModel.rounded_probabilities(dtype.torch_dtype), ROUNDOFF[dtype.torch_dtype]
    lost = SMALLEST_STEP[dtype.torch_dtype] / 2
    return replace(rounded, logits=max(roundoff, SUMMED), peak=roundoff, quotient=lost)


_OTHER_NUMBERS = (EarlierUse.PLANNED_OTHER_WINDOW, EarlierUse.PLANNED_OTHER_SOFT_CAP)

# flex_attention

_ROOM = 1 << 15
"""Entries of the tensors that the mask reads, or a power of two times as many. See docs/findings/flex-cpu-symbols.md:
with lengths of their own, the code that inductor generates does not compile.
"""

# It is compiled for each head dim, number of heads and dtype, and for one block of 128 queries or several, and one
# of keys or several. Each takes some 20 s: a few geometries are all that one can wait for.
FLEX_BUCKETS = tuple(
    _bucket(dtype, head_dim, heads, windows=(-1, 0, 5, 200), soft_caps=(0.0, 5.0, 50.0))
    for dtype, head_dim, heads in (
        (DType.BFLOAT16, 64, (4, 2)),
        (DType.FLOAT32, 40, (2, 2)),
        (DType.FLOAT16, 128, (6, 1)),
    )
)


def no_compiler() -> str | None:
    """State why torch can't compile for this CPU; None if it can."""
    compiler = os.environ.get("CXX", "g++")
    return None if shutil.which(compiler) else f"torch compiles flex_attention with {compiler}, which is not installed"


_LONGER = 200
"""Queries and keys that a mask to be cropped has beyond those of the call: more than a block."""

_MASK_ROOM = 1 << 18
"""Entries of the masks of a batch, or a power of two times as many."""


def arrange_flexibly(*, query: torch.Tensor, mask: torch.Tensor | None = None, **paged: Any) -> Mapping[str, Any]:
    """Gather keys and values, and for each query and key its request and the position of its own key there.

    `entries` are those of the mask, one row after another, and `columns` is the length of a row, 0 without a mask. One
    query or key is padded to two: lengths of 1 would be compiled for.
    """
    requests = dense_requests(**paged)
    key, value = map(_padded, gathered(requests))
    own = [(each.index, each.past + i) for each in requests for i in range(each.q_len)]
    at = [(each.index, i) for each in requests for i in range(each.kv_len)]
    places = {"query_places": _places(own, len(query), no_request=-1), "key_places": _places(at, 0, no_request=-2)}
    given = torch.zeros(0, dtype=torch.bool) if mask is None else mask.flatten()
    room = _room(_MASK_ROOM, len(given))
    entries = torch.nn.functional.pad(given, (0, room - len(given)))
    columns = 0 if mask is None else max(mask.shape[1], 1)
    return {"query": _padded(query), "key": key, "value": value, "entries": entries, "columns": columns, **places}


def _padded(tokens: torch.Tensor) -> torch.Tensor:
    return tokens if len(tokens) != 1 else torch.cat((tokens, torch.zeros_like(tokens)))


def _room(least: int, needed: int) -> int:
    """Double `least` until it is at least `needed`."""
    return least << max(0, -(-needed // least) - 1).bit_length()


def _places(places: list[tuple[int, int]], rows: int, *, no_request: int) -> torch.Tensor:
    """Place int64 [room, 2] positions in a table, with `no_request` in entries of no token."""
    table = torch.full((_room(_ROOM, max(rows, len(places)) + _LONGER), 2), no_request)
    if places:
        table[: len(places)] = torch.tensor(places)
    return table


def attend_flexibly(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_places: torch.Tensor,
    key_places: torch.Tensor,
    entries: torch.Tensor,
    columns: int,
    scale: float,
    window_left: int,
    soft_cap: float,
    life: Sequence[EarlierUse] = (),
) -> None:
    """Write flex_attention of one ragged batch to `out`. No queries or no keys, no call."""
    if not len(query) or not len(key):
        out.zero_()
        return
    for places in (query_places, key_places, entries):
        torch._dynamo.mark_static(places)  # noqa: SLF001 - its public name
    width, last = torch.tensor(columns), torch.tensor(len(entries) - 1)
    left = torch.tensor(window_left if window_left >= 0 else 1 << 40)
    factor, cap = torch.tensor(scale), torch.tensor(soft_cap)

    def seen(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        del batch, head
        own, at = query_places[row, 1], key_places[column, 1]
        same = query_places[row, 0] == key_places[column, 0]
        given = entries[torch.minimum((row * width + at).clamp(min=0), last)]
        return same & torch.where(width > 0, given, at <= own) & (at >= own - left)

    def scored(logit: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        # Numbers would be compiled for: the scale is no argument, and there is one module with and without a soft cap.
        logit = logit * factor
        return torch.where(cap > 0, cap * torch.tanh(logit / cap), logit)

    states = (tokens.transpose(0, 1)[None] for tokens in (query, key, value))
    got = compiled_flex()(*states, seen, scored, EarlierUse.CROPPED in life)
    out.copy_(got[0].transpose(0, 1)[: len(out)])


_MOST_VARIANTS = 64
"""Kinds of shapes: beyond this number, dynamo raises an error instead of running flex_attention uncompiled."""


def block_mask(
    seen: Callable[..., torch.Tensor], heads: int | None, lengths: tuple[int, int], device: str, *, cropped: bool
) -> Any:
    """Make the BlockMask of a mask for `lengths`, those of queries and keys; if `cropped`, from a longer one.

    "You can ... adjust the existing block mask to the correct length by calling block_mask._adjust" (flex_attention, of
    a mask made for longer sequences). Raises Unsupported where torch rounds its lengths up to blocks, as 2.11 does: the
    call is refused then.
    """
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415 - it imports the compiler

    rows, keys = lengths
    if not cropped:
        return create_block_mask(seen, heads, heads, rows, keys, device=device)
    longer = create_block_mask(seen, heads, heads, rows + _LONGER, keys + _LONGER, device=device)
    cut = longer._adjust(rows, keys)  # noqa: SLF001 - the method that its message names
    if cut.seq_lengths != lengths:
        raise Unsupported(
            f"torch {torch.__version__} rounds the lengths of a cropped block mask up to {cut.seq_lengths}"
        )
    return cut


@cache
def compiled_flex() -> Callable[..., torch.Tensor]:
    """Return a function of query, key and value [1, heads, tokens, head dim], functions mask and score, and `cropped`.

    It is compiled at the first use for each kind of shape, with lengths that are dynamic. Inductor's code is kept in
    attnfuzz's cache; it starts no processes.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    import torch._dynamo  # noqa: PLC0415 - the compiler, in workers alone
    import torch._inductor.config as inductor  # noqa: PLC0415
    import torch.fx.experimental._config as symbols  # noqa: PLC0415
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415

    torch._dynamo.config.recompile_limit = _MOST_VARIANTS  # noqa: SLF001 - dynamo's settings have no public place
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # noqa: SLF001
    inductor.compile_threads = 1
    # Lengths that happen to be equal would get a module of their own.
    symbols.use_duck_shape = False
    compiled = torch.compile(flex_attention, dynamic=True)

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        seen: Callable[..., torch.Tensor],
        scored: Callable[..., torch.Tensor],
        cropped: bool,
    ) -> torch.Tensor:
        mask = block_mask(seen, 1, (query.shape[2], key.shape[2]), "cpu", cropped=cropped)
        grouped = query.shape[1] != key.shape[1]
        got: torch.Tensor = compiled(query, key, value, scored, block_mask=mask, scale=1.0, enable_gqa=grouped)
        return got

    return attend


FLEX = LibraryBackend(
    attend_flexibly,
    label="torch:flex_attention",
    packages={"torch": "2.13"},
    why_not=no_compiler,
    capability=Capability(
        modes=Mode.of_kernels(),
        buckets=FLEX_BUCKETS,
        masks=tuple(Mask),
        windowed_masks=tuple(Mask),
        right_windows=True,
        edges=UNSAID_FACTORS,
        patience=8.0,
        earlier_uses=(*CALLED, EarlierUse.PLANNED_CUSTOM_MASK, *_OTHER_NUMBERS, EarlierUse.CROPPED),
    ),
    # The template (torch/_inductor/codegen/cpp_flex_attention_template.py) is that of SDPA's fused kernel: weights
    # rounded to the dtype of V for the second product, exp_u20, everything else in fp32.
    noise_models={dtype: fused_noise(dtype) for dtype in FLOATS},
    arrange=arrange_flexibly,
)


# Nested tensors

# On a CPU there is one kernel, of single operations, without masks and without shared heads ("No viable backend for
# scaled_dot_product_attention was found", "Nested tensors ... are not supported when is_causal=True"): decodes.
NESTED_BUCKETS = tuple(
    _bucket(dtype, head_dim, (1, 1), (3, 3), (8, 8), modes=(Mode.DECODE,))
    for dtype in FLOATS
    for head_dim in (64, 8, 40, 256)
)


def arrange_nested(*, seq_lens: torch.Tensor, cum_seq_lens_q: torch.Tensor, **paged: Any) -> Mapping[str, Any]:
    """Gather keys and values, and the ends of the requests among them in int64."""
    requests = dense_requests(seq_lens=seq_lens, cum_seq_lens_q=cum_seq_lens_q, **paged)
    key, value = gathered(requests)
    ends = torch.nn.functional.pad(seq_lens.cumsum(0), (1, 0))
    return {"key": key, "value": value, "key_ends": ends, "query_ends": cum_seq_lens_q.long()}


def attend_nested(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    scale: float | None = None,
) -> None:
    """Write scaled_dot_product_attention of jagged tensors to `out`: each query sees all keys of its request."""
    if (query_ends.diff() > 1).any():
        raise Unsupported("causal masks of nested tensors are not supported on a CPU")
    if not len(key):
        raise Unsupported("to_padded_tensor refuses a nested tensor without elements")
    nested = torch.nested.nested_tensor_from_jagged
    rows = nested(query, query_ends).transpose(1, 2)
    keys, values = (nested(tokens, key_ends).transpose(1, 2) for tokens in (key, value))
    got = torch.nn.functional.scaled_dot_product_attention(rows, keys, values, scale=scale)
    out.copy_(got.transpose(1, 2).values())


NESTED = LibraryBackend(
    attend_nested,
    label="torch:nested",
    packages={"torch": "2.13"},
    capability=Capability(
        modes=(Mode.DECODE,),
        buckets=NESTED_BUCKETS,
        arguments=(
            *promised('docstring: "If None, the default value is set to 1 / sqrt(E)"', ArgumentForm.SCALE_DEFAULT),
            *unsaid(ArgumentForm.QUERY_ELEMENTS_APART, ArgumentForm.KEYS_GAPS, ArgumentForm.VALUES_GAPS),
        ),
        edges=UNSAID_FACTORS,
        earlier_uses=CALLED,
    ),
    noise_models={dtype: unfused_noise(dtype) for dtype in FLOATS},
    arrange=arrange_nested,
)
TORCH_BACKENDS = (FLEX, NESTED)
