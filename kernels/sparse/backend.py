"""Backends of sparse attention: functions for each op, with the arguments of `attnfuzz.kernels.native.sparse_ops`.

A function gets those arguments that it has parameters for:

- "write": k, kv_cache, slot_mapping, page_size, powers
- "save_states": kv, score, ape, positions, state_cache, slot_mapping; then "compress": state_cache, gather_slots,
  positions, kv_slot_mapping, rms_norm_weight, rms_norm_eps, cos_sin_cache, kv_cache, page_size, compress_ratio
- "logits", of packed keys: q, kv, kv_scales, weights, cu_seq_len_k_start, cu_seq_len_k_end, and logits to write
- "paged_logits": q, kv_cache, weights, context_lens, block_table, page_size, next_n, and logits to write
- "row_logits", of kernels that work `by_row`: q, kv_cache, weights, lengths, tables [rows, columns], page_size, and
  logits to write; their "slots" and "top_k_slots" get `tables`, too, in place of requests and block_table
- "top_k": scores, lengths, row_starts (None in steps of pages), and indices to write
- "slots": positions, requests, block_table, page_size, and slots to write; "offsets": positions, offsets, slots
- "top_k_slots", "top_k_offsets": those of both, with slots to write
- "attention": query, keys, values, indices, topk_length, the same with the prefix "extra_", attn_sink,
  page_size, softmax_scale, and out and lse to write; `tables` and `lengths` have all keys of each row, for a kernel
  without lists whose lists are as long
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.sparse.session import ChainSession
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseCase, SparseOp

WRITES: Mapping[str, frozenset[str]] = {
    "write": frozenset({"kv_cache"}),
    "save_states": frozenset({"state_cache"}),
    "compress": frozenset({"kv_cache"}),
    "logits": frozenset({"logits"}),
    "paged_logits": frozenset({"logits"}),
    "row_logits": frozenset({"logits"}),
    "top_k": frozenset({"indices"}),
    "slots": frozenset({"slots"}),
    "offsets": frozenset({"slots"}),
    "top_k_slots": frozenset({"slots"}),
    "top_k_offsets": frozenset({"slots"}),
    "attention": frozenset({"out", "lse"}),
}
"""The arguments that each kind of function may write."""


def _called(can: SparseCapability) -> Iterator[str]:
    """Yield the kinds of the functions that cases of a capability call."""
    batched = any(mode.batched for mode in can.modes)
    dense = not can.by_row and not all(mode.batched for mode in can.modes)
    scores = {"row_logits": can.by_row, "paged_logits": batched and not can.by_row, "logits": dense}
    lists = {"slots": batched or not dense or False in can.ragged, "offsets": dense and True in can.ragged}
    transforms = [kind for kind, used in lists.items() if used]
    kinds = {
        SparseOp.COMPRESS: ["save_states", "compress"],
        SparseOp.LOGITS: [kind for kind, used in scores.items() if used],
        SparseOp.TOP_K: ["top_k"],
        SparseOp.TRANSFORM: transforms,
    }
    fused = kinds | {SparseOp.TOP_K: [f"top_k_{kind}" for kind in transforms], SparseOp.TRANSFORM: []}
    for ops in can.chains:
        fuses = can.fused and {SparseOp.TOP_K, SparseOp.TRANSFORM} <= set(ops)
        for op in ops:
            yield from (fused if fuses else kinds).get(op, [op.value])


def no_reason() -> None:
    """Return no reason."""


@dataclass(frozen=True, kw_only=True)
class SparseBackend:
    """A backend called `label` on `functions` by their kinds.

    `own` are functions as ops, with names and arguments to write of their own. `noise_models` are those by dtype: that
    of float8_e4m3fn is of scores, that of bfloat16 of attention. `load` prepares the functions, and `why_not` returns
    the reason that they can't run on this machine, or None. Raises ValueError if a kind of function is lacking that
    cases of the capability call.
    """

    label: str
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    own: Mapping[str, Op] = field(default_factory=dict)
    capability: SparseCapability
    contract: Contract = Contract()
    noise_models: Mapping[DType, NoiseModel] = field(default_factory=dict)
    load: Callable[[Callable[[str], None]], object] = lambda _: None
    why_not: Callable[[], str | None] = no_reason
    session: type[ChainSession] = ChainSession
    called_as_documented: bool = True

    def __post_init__(self) -> None:
        kinds = dict.fromkeys(_called(self.capability))
        lacking = ", ".join(f'"{kind}"' for kind in kinds if kind not in {**self.functions, **self.own})
        if lacking:
            raise ValueError(f"{self.label} has no function {lacking}: add it, or restrict its capability")

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    @cached_property
    def kinds(self) -> Mapping[str, Op]:
        """The ops by their kinds."""
        made = {
            kind: Op(getattr(function, "__name__", kind), function, WRITES[kind])
            for kind, function in self.functions.items()
        }
        return {**made, **self.own}

    @property
    def ops(self) -> Mapping[str, Op]:
        """The ops by name, for literal calls."""
        return {op.name: op for op in self.kinds.values()}

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model of the scores (float8_e4m3fn) or of the attention (bfloat16)."""
        return self.noise_models.get(dtype, NoiseModel.unknown_kernel())

    def missing(self) -> str | None:
        """Return the reason that the backend can't run on this machine, or None."""
        return self.why_not()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Load the functions."""
        self.load(progress)

    def open(self, case: SparseCase, bench: Bench) -> ChainSession:
        """Open a session on a case."""
        noise = self.noise(DType.FLOAT8_E4M3)
        return self.session(case, bench, self.kinds, noise, self.capability)
