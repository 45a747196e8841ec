"""Small legal calls of the four attention functions, drawn or fixed, with every argument that a planner may pass."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.interface.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.native.ops import NATIVE

STALE = 7.0
"""What outputs hold where nobody writes."""

_NOWHERE = 0x00BADBAD
"""A page id that no kernel may follow."""

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Between two neighbours of a dtype, relative to either."""

Place = Callable[[str, torch.Tensor], torch.Tensor]
"""Makes a copy of an argument, with its strides."""


@dataclass(frozen=True)
class AttentionCall:
    """A call on the CPU: `kind` is the field of an OpsTable, and `arguments` are whole."""

    kind: str
    arguments: Mapping[str, Any]

    def op(self, table: OpsTable) -> Op:
        """The function in a table."""
        op: Op = getattr(table, self.kind)
        return op

    def placed(self, place: Place) -> dict[str, Any]:
        """Its arguments elsewhere. The mirrors of lengths stay on the host."""
        return {
            name: value if name.endswith("_cpu") else _each_placed(name, value, place)
            for name, value in self.arguments.items()
        }


def _each_placed(name: str, value: Any, place: Place) -> Any:
    if isinstance(value, torch.Tensor):
        return place(name, value)
    if isinstance(value, tuple):
        return tuple(_each_placed(f"{name}[{index}]", item, place) for index, item in enumerate(value))
    return value


def with_strides(value: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """A copy that has the gaps of `value` too; they hold ones, in every bit."""
    if not value.numel():
        return value.to(device, copy=True)
    reach = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)) + 1
    memory = torch.full((reach * value.itemsize,), 0xFF, dtype=torch.uint8, device=device)
    copy = memory.view(value.dtype).as_strided(value.shape, value.stride())
    bits = _BITS[value.itemsize]
    copy.view(bits).copy_(value.view(bits))
    return copy


def assert_same(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Outputs of two kernels that compute in fp32, one in another order: NaN and untouched rows in the same places."""
    for name in ("out", "lse"):
        if name in expected:
            mine, theirs = actual[name].cpu(), expected[name]
            torch.testing.assert_close(mine, theirs, rtol=_ROUNDING[mine.dtype], atol=3e-5, equal_nan=True)


@st.composite
def calls(draw: st.DrawFn, kinds: tuple[str, ...] = ("decode", "context", "ragged", "mla_decode")) -> AttentionCall:
    """A call with q lengths and KV lengths of any relation, none and less than none among them."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(kinds))
    batch = draw(st.integers(1, 4))
    q_len = draw(st.integers(1, 4))
    packed = kind in {"context", "ragged"}
    q_lens = [draw(st.integers(0, 9)) if packed else q_len for _ in range(batch)]
    shortest = 0 if kind == "ragged" else -2
    kv_lens = [draw(st.sampled_from((shortest, 0, 1, 3, 64, 65, 150)) | st.integers(0, 90)) for _ in range(batch)]
    # Rows of padding behind those of requests; in decode they make no whole request.
    rows = sum(q_lens) + (draw(st.integers(0, 3)) if packed else draw(st.integers(0, q_len - 1)))
    heads = 1 if kind == "mla_decode" else draw(st.integers(1, 3))
    q_heads = heads * draw(st.integers(1, 4))
    dim, value_dim = draw(st.sampled_from(_DIMS[kind]))
    dtype = draw(st.sampled_from(_DTYPES))
    kv_dtype = draw(st.sampled_from((dtype, dtype, torch.float8_e4m3fn)))
    shape = (rows, q_heads)
    sent: dict[str, Any] = {
        "query": _strided(draw, torch.randn(*shape, dim).to(dtype)),
        "seq_lens": _int32(kv_lens),
        # As servers scale: larger logits would amplify the rounding of long dot products, which `assert_same` bounds.
        "bmm1_scale": draw(st.sampled_from((0.4, 1.2))) * dim**-0.5,
        "bmm2_scale": draw(st.sampled_from((1.0, 0.5))),
        "out": _strided(draw, torch.full((*shape, value_dim), STALE, dtype=draw(st.sampled_from((dtype, *_DTYPES))))),
    }
    if draw(st.booleans()):
        sent |= {"lse": _strided(draw, torch.full(shape, STALE)), "return_lse": True}
    if packed:
        starts = _int32(itertools.accumulate(q_lens, initial=0))
        causal = draw(st.booleans())
        sent |= {"batch_size": batch, "cum_seq_lens_q": starts, "max_q_len": max(q_lens), "max_kv_len": max(kv_lens)}
    else:
        sent["max_seq_len"] = max(0, *kv_lens) + draw(st.sampled_from((0, 100)))
    # Exact, because native kernels do not check its size: one that is too small would be overrun.
    need = NATIVE.prefill_workspace if packed else _decode_workspace(sent, batch, q_len, heads)
    sent["workspace_buffer"] = torch.zeros(need.total, dtype=torch.uint8)
    if kind != "mla_decode":
        # FlashInfer's context kernel refuses a window without a right end unless the attention is causal.
        windows = (-1,) if kind == "context" and not causal else (-1, -1, 0, 3, 40)
        sent["window_left"] = draw(st.sampled_from(windows))
    if draw(st.booleans()):
        sent["attention_sinks" if kind == "ragged" else "sinks"] = torch.randn(q_heads)
    if kind == "ragged":
        sent |= {"is_causal": causal, "return_lse": "lse" in sent, "o_sf_scale": 1.0, "enable_pdl": None}
        sent |= _packed_keys(draw, kv_lens, heads, (dim, value_dim), kv_dtype)
        if draw(st.booleans()):
            sent |= {"q_seq_lens_cpu": _int32(q_lens), "kv_seq_lens_cpu": _int32(kv_lens)}
        return AttentionCall(kind, sent)
    sent |= _paged_keys(draw, kind, kv_lens, heads, (dim, value_dim), kv_dtype)
    if kind == "context":
        sent |= {"causal": causal, "cum_seq_lens_kv": starts}
    if kind == "decode":
        sent["q_len_per_req"] = q_len
    if kind == "mla_decode":
        whole = {name: sent[name][: batch * q_len] for name in ("query", "out")}
        sent |= {name: value.unflatten(0, (batch, q_len)) for name, value in whole.items()}
        sent |= {"kv_lora_rank": value_dim, "qk_rope_head_dim": dim - value_dim, "qk_nope_head_dim": value_dim}
        if "lse" in sent:
            sent["lse"] = sent["lse"][: batch * q_len]
    return AttentionCall(kind, sent)


def _decode_workspace(sent: Mapping[str, Any], batch: int, q_len: int, heads: int) -> WorkspaceBytes:
    _, q_heads, value_dim = sent["out"].shape
    return NATIVE.decode_workspace(
        batch=batch,
        q_len=q_len,
        q_heads=q_heads,
        kv_heads=heads,
        head_dim_vo=value_dim,
        max_seq_len=sent["max_seq_len"],
    )


_DIMS = {
    "decode": ((16, 16), (33, 33), (24, 16)),
    "context": ((16, 16), (33, 33), (128, 128)),
    "ragged": ((24, 16), (192, 128), (5, 9)),
    "mla_decode": ((20, 16), (576, 512)),
}


def _packed_keys(
    draw: st.DrawFn, kv_lens: list[int], heads: int, dims: tuple[int, int], dtype: torch.dtype
) -> dict[str, Any]:
    key, value = (_strided(draw, torch.randn(sum(kv_lens), heads, dim).to(dtype)) for dim in dims)
    return {"key": key, "value": value, "cum_seq_lens_kv": _int32(itertools.accumulate(kv_lens, initial=0))}


def _paged_keys(
    draw: st.DrawFn, kind: str, kv_lens: list[int], heads: int, dims: tuple[int, int], dtype: torch.dtype
) -> dict[str, Any]:
    """A page table, and a cache in one of the forms that the function takes: NaN but for keys that it names."""
    page = draw(st.sampled_from((1, 4, 16, 32)))
    wide = max(-(-max(length, 0) // page) for length in kv_lens) + 1
    pages = torch.randperm(len(kv_lens) * wide + 1)[: len(kv_lens) * wide].view(len(kv_lens), wide)
    table = torch.full_like(pages, _NOWHERE, dtype=torch.int32)
    # One tensor holds both K and V, or is both, where their head dims agree.
    together = 0 if dims[0] != dims[1] else draw(st.sampled_from((0, 0, 1, 2)))
    members = 1 if kind == "mla_decode" else together or 2
    pools = [torch.full((pages.numel() + 1, heads, page, dim), torch.nan) for dim in dims[:members]]
    for row, length in enumerate(kv_lens):
        for column in range(-(-max(length, 0) // page)):
            table[row, column] = pages[row, column]
            slots = min(page, length - column * page)
            for pool in pools:
                pool[pages[row, column], :, :slots] = torch.randn(heads, slots, pool.shape[-1])
    sent: dict[str, Any] = {"block_tables": _strided(draw, table)}
    if kind == "mla_decode":
        pool = pools[0].to(dtype)
        return sent | {"kv_cache": _strided(draw, pool if draw(st.booleans()) else pool.squeeze(1))}
    layout = draw(st.sampled_from(("HND", "NHD")))
    views = [(pool if layout == "HND" else pool.transpose(1, 2)).to(dtype) for pool in pools]
    if together:
        return sent | {"kv_layout": layout, "kv_cache": _strided(draw, _stacked(views))}
    return sent | {"kv_layout": layout, "kv_cache": tuple(_strided(draw, view) for view in views)}


def _stacked(values: list[torch.Tensor]) -> torch.Tensor:
    """Along a second axis, whatever the dtype."""
    return torch.stack([value.float() for value in values], 1).to(values[0].dtype)


def _strided(draw: st.DrawFn, value: torch.Tensor) -> torch.Tensor:
    """The same with gaps before all axes but the last."""
    stride = [1]
    for size in reversed(value.shape[1:]):
        stride.insert(0, size * stride[0] + draw(st.sampled_from((0, 0, 1, 7))))
    # Stays one stride over tokens, where decode of latents takes them apart.
    return with_strides(torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value))


def _int32(values: Any) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
