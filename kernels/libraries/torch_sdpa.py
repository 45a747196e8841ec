"""torch.nn.functional.scaled_dot_product_attention as a backend, to test kernels of an independent library.

It has neither pages nor ragged batches, so each request is a separate call. Its contract is the docstring of
scaled_dot_product_attention, whose reference code makes a fully masked row zero. A request without keys is not
launched: torch returns (q.sum() + k.sum() + v.sum()) * 0 for it (PyTorch PR #175063), which is NaN if the sum
overflows. The revision `torch_sdpa@175063` launches it.

With `is_causal`, softmax scales of 0 and below give NaN (docs/findings/scale-after-the-mask.md): they are only drawn
for the separate backend `torch_sdpa_any_scale`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import OF_THE_SOFTMAX_SCALE, UNSAID_EDGES, opened
from attnfuzz.kernels.interface.backend import Bench, Op, Output, Session
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.planning.results import place_out
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.arguments import ArgumentForm, promised, refused, unsaid
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mask, QueryView, Request, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import mask_of
from attnfuzz.reference.noise import NoiseModel


def attend_into(*, out: torch.Tensor, **arguments: Any) -> None:
    """Write the result of scaled_dot_product_attention for `arguments` to `out` [1, heads, q_len, dim]."""
    out.copy_(torch.nn.functional.scaled_dot_product_attention(**arguments))


SDPA = Op(
    name="scaled_dot_product_attention",
    function=attend_into,
    writes=frozenset({"out"}),
    module="torch.nn.functional",
)


_F = ArgumentForm
OF_MASKS = (_F.MASK_GAPS, _F.MASK_ADDED)
ARGUMENTS = (
    *promised('docstring: "If None, the default value is set to 1 / sqrt(E)"', _F.SCALE_DEFAULT),
    *promised('docstring: "A float mask of the same type as query, key, value that is added"', _F.MASK_ADDED),
    *unsaid(_F.QUERY_ELEMENTS_APART, _F.KEYS_GAPS, _F.VALUES_GAPS, _F.MASK_GAPS),
    *refused("annotation of scale: float (checked)", _F.SCALE_TENSOR),
)
"""Forms of scaled_dot_product_attention's arguments. Its output is always returned."""


class SdpaSession:
    """A session with one call per request. K and V are dense, each in separate memory.

    With `call_without_keys`, requests without keys are launched too.
    """

    op: Op = SDPA

    def __init__(self, case: Case, bench: Bench, *, call_without_keys: bool = False) -> None:
        self._call_without_keys = call_without_keys
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case, device=bench.device)
        self._scale = softmax_scale(case)

    def forward(self, index: int) -> Output:
        """Run one step."""
        step, geometry = self._case.steps[index], self._case.geometry
        drawn = draw_queries(self._case, index, step.padded_tokens, geometry.head_dim_qk)
        with self._bench.memory.at_once():
            query = place_queries(self._case, self._bench, drawn)
            out = place_out(self._case, self._bench, step.padded_tokens)
        self._compute(step, query, out)
        attended = self._tokens.attended(step, query, packed_rows(step))
        return Output(out=out, lse=None, attended=attended, bmm1_scale=self._scale, bmm2_scale=1.0)

    def _compute(self, step: Step, query: torch.Tensor, out: torch.Tensor) -> None:
        """Write the step's rows of `out`, one request after another."""
        with self._bench.memory.at_once():
            placed = [self._placed(step, request) for request in step.requests]
        for first, request, arguments in zip(packed_rows(step), step.requests, placed, strict=True):
            rows = slice(first, first + request.q_len)
            if arguments is None:
                out[rows].zero_()
            else:
                self._attend(query[rows], out=out[rows], **arguments)

    def _placed(self, step: Step, request: Request) -> dict[str, Any] | None:
        """Return K, V and the mask of a request, or None if it is not launched."""
        if not request.kv_len and not self._call_without_keys:
            return None
        copy = self._bench.memory.copy
        key = copy("key", self._tokens.keys(request.slot, request.kv_len))
        value = copy("value", self._tokens.values(request.slot, request.kv_len))
        return {"key": key, "value": value, "masked": self._masked(step, request)}

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, masked: dict[str, Any]
    ) -> None:
        """Launch on tensors [tokens, heads, dim]; the arguments in `masked` determine the visible keys."""
        query, key, value, out = (tokens.transpose(0, 1).unsqueeze(0) for tokens in (query, key, value, out))
        self._bench.launcher.launch(
            self.op,
            out=out,
            query=query,
            key=key,
            value=value,
            scale=self._scale,
            enable_gqa=self._case.geometry.group > 1,
            **masked,
        )

    def _masked(self, step: Step, request: Request) -> dict[str, Any]:
        """Return the arguments that determine the keys that a query sees."""
        window, given = self._case.geometry.window_left, mask_of(self._case, step, request)
        plain = window < 0 and request.q_len == request.kv_len and given is None
        mask = None
        if not plain:
            drawn = visible(request.q_len, request.kv_len, window, given)
            mask = self._bench.memory.copy("attn_mask", drawn.view(torch.uint8)).view(torch.bool)
        return {"attn_mask": mask, "is_causal": plain}


def visible(q_len: int, kv_len: int, window_left: int, given: torch.Tensor | None = None) -> torch.Tensor:
    """Return the bool mask [q_len, kv_len] of visible keys: `given` or else causal, limited to the window.

    The last query is aligned to the last key.
    """
    last = torch.arange(q_len).unsqueeze(1) + kv_len - q_len
    key = torch.arange(kv_len)
    mask = key <= last if given is None else given
    return mask & (key >= last - window_left) if window_left >= 0 else mask


@cache
def sums_without_keys() -> bool:
    """Return whether torch's attention to no keys is NaN if the sum of the query overflows (PyTorch PR #175063)."""
    query, nothing = torch.full((1, 1, 1, 8), 6e4, dtype=torch.float16), torch.empty(1, 1, 0, 8, dtype=torch.float16)
    return bool(torch.nn.functional.scaled_dot_product_attention(query, nothing, nothing).isnan().any())


@dataclass(frozen=True)
class SdpaBackend:
    """torch's attention on the CPU."""

    name: str = "torch_sdpa"
    call_without_keys: bool = False
    capability: Capability = Capability(
        layouts=(KvLayout.HND, KvLayout.NHD),
        unequal_head_dims=True,
        windows=True,
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
        masks=tuple(Mask),
        windowed_masks=tuple(Mask),
        right_windows=True,
        arguments=ARGUMENTS,
        edges=tuple(rule for rule in UNSAID_EDGES if rule.edge not in OF_THE_SOFTMAX_SCALE),
    )
    contract: Contract = Contract()
    in_inference_mode: ClassVar[bool] = True

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model calibrated on this architecture, or the theory."""
        return shipped_noise(self.name, dtype, self.theory(dtype))

    def theory(self, dtype: DType) -> NoiseModel:
        """Return the model of torch's fused CPU kernel."""
        return NoiseModel.torch_sdpa_cpu(dtype.torch_dtype)

    @property
    def ops(self) -> Mapping[str, Op]:
        """The single entry point."""
        return {SDPA.name: SDPA}

    def missing(self) -> str | None:
        """Return a reason if the revision's bug is not in this release of torch. Torch itself is always installed."""
        if self.call_without_keys and not sums_without_keys():
            return f"torch {torch.__version__} does not sum its inputs for attention to no keys, as 2.13.0 does"
        return None

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Do nothing: there is nothing to compile."""

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case."""
        session = partial(SdpaSession, call_without_keys=self.call_without_keys)
        return opened(session, case, bench, self.capability)


_SDPA = SdpaBackend()
SDPA_BACKENDS = (
    _SDPA,
    SdpaBackend(name="torch_sdpa@175063", call_without_keys=True),
    SdpaBackend(name="torch_sdpa_any_scale", capability=msgspec.structs.replace(_SDPA.capability, edges=UNSAID_EDGES)),
)


def backends() -> tuple[SdpaBackend, ...]:
    """Return all of them."""
    return SDPA_BACKENDS
