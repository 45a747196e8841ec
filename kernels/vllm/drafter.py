"""A server with a draft model: the release's own proposer runs it after a forward of the target.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
from msgspec.structs import replace

from attnfuzz.kernels.vllm.mla.layer import LatentModel
from attnfuzz.kernels.vllm.mla.runner import LatentRunner
from attnfuzz.kernels.vllm.model import LAYER, Model
from attnfuzz.kernels.vllm.runner import ModelRunner
from attnfuzz.reference.case import Case, Mode, Request, Step

_VERIFIES: Final = (Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND)

_REJECTED: Final = -1
"""The placeholder of a rejected draft among sampled tokens (v1/sample/rejection_sampler.py, PLACEHOLDER_TOKEN_ID)."""

_STATE: Final = {"common_attn_metadata": "spec_decode_common_attn_metadata"}
"""Arguments of the proposer with another name in the runner's state after a forward."""


@dataclass(frozen=True)
class TargetForward:
    """The target's forward of a request before its draft decodes: over `request`, whose first tokens are `accepted`."""

    request: Request
    accepted: int

    @classmethod
    def before(cls, case: Case, index: int, drafted: Request) -> "TargetForward":
        """Return the last verify if the draft decodes of step `index` follow it, else a forward over the last token."""
        prefix = drafted.kv_len - drafted.q_len
        for step in reversed(case.steps[:index]):
            verify = next((each for each in step.requests if each.slot == drafted.slot and each.q_len), None)
            if verify is None:
                continue
            computed = verify.kv_len - verify.q_len
            if step.mode in _VERIFIES and 0 < computed < prefix <= verify.kv_len:
                return cls(verify, prefix - computed)
            break
        return cls(replace(drafted, q_len=1, kv_len=prefix), 1)

    @property
    def computed(self) -> int:
        """The number of keys before the forward."""
        return self.request.kv_len - self.request.q_len


class DraftModel(Model):
    """The draft model's layer, whose token at a position is the target's next one.

    It generates the sequence's next tokens, so that each forward is over tokens of the case.

    Attributes:
        outs: The outputs of its forwards since the last step began.

    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.outs: list[torch.Tensor] = []

    def begin(self, index: int) -> None:
        """Use the queries of a step."""
        super().begin(index)
        self.outs = []

    def __call__(self, *, input_ids: torch.Tensor, positions: torch.Tensor, **more: Any) -> Any:
        """Run the model. Returns the ids of the next tokens [rows, 1], and the hidden states."""
        hidden = super().__call__(input_ids=input_ids, positions=positions, **more)
        return input_ids.long().unsqueeze(1) + 1, hidden

    def compute_logits(self, hidden: torch.Tensor) -> Any:
        """Return logits whose argmax is the next token."""
        return SimpleNamespace(argmax=lambda **_: hidden.flatten())

    def _finish(self, layer: Callable[[], torch.Tensor]) -> torch.Tensor:
        hidden = super()._finish(layer)
        assert self.out is not None
        self.outs.append(self.out)
        return hidden

    def _token(self, token: int, position: int) -> int:
        return super()._token(token - 1, position)


class LatentDraftModel(DraftModel, LatentModel):
    """A draft model with a layer of latent attention."""


class DraftingRunner(ModelRunner):
    """The release's model runner with a draft model, on a layer that both models share."""

    draft_type = DraftModel
    _drafted: tuple[int, Sequence[Request]] | None = None
    _rows_drafted: Sequence[int] = ()

    def capture(self, index: int, step: Step) -> None:
        """Capture the graph of a step's size on a dummy run of both models."""
        self._draft_model.begin(index)
        super().capture(index, step)

    def run(self, index: int, requests: Sequence[Request]) -> tuple[torch.Tensor, list[int]]:
        """Run a step with these requests. Returns the output's rows, and the first row of each request of the step."""
        step = self._server.case.steps[index]
        self._draft_model.begin(index)
        if step.mode is not Mode.DRAFT_DECODE:
            self._drafted = None
            return super().run(index, requests)
        self._drafted = index, requests
        self.model.begin(index)
        with self._running(step):
            self._meet_earlier_requests()
            self._be_idle(step)
            out, self._rows_drafted = self._draft(step)
        return out, list(self._rows_drafted)

    def again(self) -> torch.Tensor:
        """Run the last step's layers again without their writes. Returns the output's rows."""
        if self._drafted is None:
            return super().again()
        step = self._server.case.steps[self._drafted[0]]
        models = (self.model, self._draft_model)
        with self._running(step):
            for model in models:
                model.writes = False
            try:
                out, first_rows = self._draft(step)
            finally:
                for model in models:
                    model.writes = True
        # The batch no longer has these requests, and adds them again in another order.
        due, stride = out.clone(), step.tokens_per_request
        for before, now in zip(self._rows_drafted, first_rows, strict=True):
            due[before : before + stride] = out[now : now + stride]
        return due

    def _draft(self, step: Step) -> tuple[torch.Tensor, list[int]]:
        """Run the target, then the draft model. Returns the rows of its decodes by request, and the first of each."""
        assert self._drafted is not None
        index, requests = self._drafted
        if not requests:
            out = self.model.out
            assert out is not None
            return out, []
        targets = [TargetForward.before(self._server.case, index, each) for each in requests]
        ends = {each.slot: each.kv_len for each in requests}
        ordered = self._schedule.order(index, [each.request for each in targets], ends)
        # Set by the scheduler since 0.25 (v1/core/sched/scheduler.py:1747).
        ordered.num_spec_tokens_to_schedule = self._drafts
        self._draft_model.outs.clear()
        self._call("execute_model", ordered)
        state, self._runner.execute_model_state = self._runner.execute_model_state, None
        self._propose(state, targets)
        return self._decoded(step)

    def _propose(self, state: Any, targets: Sequence[TargetForward]) -> None:
        """Have the release's runner propose drafts, as after it has sampled (v1/worker/gpu_model_runner.py:4328)."""
        width = 1 if state.spec_decode_metadata is None else 1 + self._drafts
        sampled = torch.full((len(targets), width), _REJECTED, dtype=torch.int32, device=self._server.bench.device)
        rows = self._runner.input_batch.req_id_to_index
        for each in targets:
            known = each.computed + 1
            ids = self._schedule.tokens(each.request.slot, known, known + each.accepted)
            row = rows[self._schedule.name(each.request.slot)]
            last = ids[-width:]
            sampled[row, : len(last)] = torch.tensor(last, dtype=torch.int32)
        given = {
            "sampled_token_ids": sampled,
            "sampling_metadata": self._runner.input_batch.sampling_metadata,
            **{name: getattr(state, by) for name, by in _STATE.items()},
        }
        asked = inspect.signature(type(self._runner).propose_draft_token_ids).parameters
        self._call(
            "propose_draft_token_ids",
            **{name: given[name] if name in given else getattr(state, name) for name in asked if name != "self"},
        )

    def _decoded(self, step: Step) -> tuple[torch.Tensor, list[int]]:
        """Return the rows of the draft model's decodes, after its forward over the target's tokens."""
        decodes, stride = self._draft_model.outs[1:], step.tokens_per_request
        if len(decodes) != stride:
            raise RuntimeError(f"the draft model decoded {len(decodes)} times instead of {stride}")
        rows = self._runner.input_batch.req_id_to_index
        out = torch.stack([each[: len(rows)] for each in decodes], dim=1).flatten(0, 1)
        return out, [stride * rows[self._schedule.name(each.slot)] for each in step.requests]

    def _prepare(self, runner: Any) -> None:
        server = self._server
        self._draft_model = self.draft_type(server.loaded, server.case, server.bench, server.pool, self._layer)
        # Set where a draft model is loaded (v1/spec_decode/llm_base_proposer.py:1318).
        runner.drafter.model = self._draft_model
        runner.drafter._draft_attn_layer_names = {LAYER}  # noqa: SLF001


class LatentDraftingRunner(DraftingRunner, LatentRunner):
    """A drafting runner with layers of latent attention."""

    draft_type = LatentDraftModel


def rejected(case: Case, index: int) -> list[tuple[int, int]]:
    """Return (slot, position) of rejected drafts after the last keys of step `index`: the draft model writes them."""
    step = case.steps[index]
    if step.mode is not Mode.DRAFT_DECODE:
        return []
    ends = {each.slot: TargetForward.before(case, index, each).request.kv_len for each in step.requests}
    return [(each.slot, position) for each in step.requests for position in range(each.kv_len, ends[each.slot])]
