"""A packed attention problem, its answer, and the moments from which error bounds are derived."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Problem:
    """A packed attention problem: query [T, Hq, Dqk], key [S, Hkv, Dqk] and value [S, Hkv, Dv] of any float dtype.

    Tokens are in the order of requests. Keys and values are on one device, queries and sinks on the same or another.

    Request r has `q_lens[r]` queries and `kv_lens[r]` keys. `causal` aligns its last query to its last key: query i
    sees key j if j <= kv - q + i. With `masks`, one bool [q_len, kv_len] per request on the host, it sees the keys that
    are True, and `causal` must be False. With `window_left` >= 0, it sees a key only if j >= kv - q + i - window_left.
    A logit is bmm1_scale * q.k, capped to soft_cap * tanh(logit / soft_cap) unless `soft_cap` is 0. `sinks` [Hq] are
    additional logits in the denominator. The output is multiplied by `bmm2_scale`. Raises ValueError if the shapes do
    not fit together.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    bmm1_scale: float
    bmm2_scale: float = 1.0
    window_left: int = -1
    causal: bool = True
    sinks: torch.Tensor | None = None
    soft_cap: float = 0.0
    masks: tuple[torch.Tensor, ...] | None = None

    def __post_init__(self) -> None:
        tokens, q_heads, dim = self.query.shape
        keys, kv_heads, key_dim = self.key.shape
        if len(self.q_lens) != len(self.kv_lens):
            raise ValueError(f"{len(self.q_lens)} query lengths, but {len(self.kv_lens)} key lengths: give one each")
        if sum(self.q_lens) != tokens:
            raise ValueError(f"query lengths add up to {sum(self.q_lens)}, but there are {tokens} queries")
        if sum(self.kv_lens) != keys or self.value.shape[:2] != self.key.shape[:2]:
            shapes = f"key has shape {tuple(self.key.shape)} and value {tuple(self.value.shape)}"
            raise ValueError(f"key lengths add up to {sum(self.kv_lens)}, but {shapes}")
        if key_dim != dim or kv_heads == 0 or q_heads % kv_heads:
            raise ValueError(f"queries [{q_heads} heads, dim {dim}] do not fit keys [{kv_heads} heads, dim {key_dim}]")
        if self.masks is not None:
            self._check_masks(self.masks)

    def _check_masks(self, masks: tuple[torch.Tensor, ...]) -> None:
        due = [*zip(self.q_lens, self.kv_lens, strict=True)]
        if self.causal or [tuple(mask.shape) for mask in masks] != due:
            raise ValueError(f"masks have shapes {[tuple(mask.shape) for mask in masks]}: give {due}, and causal=False")

    def seen_under_mask(self, request: int, queries: slice = slice(None)) -> torch.Tensor:
        """Return which keys the queries of a request see under its mask and the window: bool [queries, kv_len]."""
        assert self.masks is not None
        mask = self.masks[request]
        q_len, kv_len = mask.shape
        if self.window_left < 0:
            return mask[queries]
        start = torch.arange(q_len)[queries].unsqueeze(1) + kv_len - q_len - self.window_left
        return mask[queries] & (torch.arange(kv_len) >= start)

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query.shape[1] // self.key.shape[1]


@dataclass(frozen=True)
class Moments:
    """The quantities from which the error of a correct kernel is bounded, in fp64.

    p are the softmax weights; v and o include bmm2_scale. [T, Hq, Dv]: `power` is sum_j p_j^2 v_j^2 and `spread` sum_j
    p_j^2 (v_j - o)^2. [T, Hq]: `concentration` is sum_j p_j^2; `gap` is the weighted mean distance of the visible
    logits from the largest; `p_peak` is the largest weight; `peak` is the largest logit, sinks included, or 0 if there
    is none; `magnitude` is the request's largest |bmm1_scale| |q| |k|, which bounds every logit.
    """

    power: torch.Tensor
    spread: torch.Tensor
    concentration: torch.Tensor
    gap: torch.Tensor
    p_peak: torch.Tensor
    peak: torch.Tensor
    magnitude: torch.Tensor


@dataclass(frozen=True)
class Answer:
    """Output [T, Hq, Dv] and natural-log LSE [T, Hq] in fp64; `visible` [T] int64 counts the keys that a query sees.

    A row that sees no key has out = 0 and lse = -inf, or the sink as its lse.
    """

    out: torch.Tensor
    lse: torch.Tensor
    visible: torch.Tensor
    moments: Moments | None = None


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a float tensor in fp64, contiguous and without rounding.

    A contiguous fp64 tensor is returned itself. On the CPU, fp8 uses a table of its 256 values, which is four times as
    fast as torch's conversion.
    """
    if tensor.dtype is torch.float8_e4m3fn and tensor.device.type == "cpu":
        index = tensor.view(torch.uint8).to(torch.int32, memory_format=torch.contiguous_format)
        return _E4M3.index_select(0, index.view(-1)).view(tensor.shape)
    if tensor.dtype is torch.float64:
        return tensor.contiguous()
    return tensor.to(torch.float64, memory_format=torch.contiguous_format)


_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
