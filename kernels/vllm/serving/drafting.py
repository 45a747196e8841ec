"""A server with a draft model: the release's own proposer runs it after each forward that its scheduler chooses.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Attended, WrittenCache
from attnfuzz.kernels.vllm.config import ServerLimits
from attnfuzz.kernels.vllm.server import VllmServer
from attnfuzz.kernels.vllm.serving.model import EngineModel
from attnfuzz.kernels.vllm.serving.runner import Answer, EngineRunner
from attnfuzz.kernels.vllm.serving.scheduled_pool import EnginePool, ScheduledTokens
from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary
from attnfuzz.reference.case import Step

DRAFT_LAYER: Final = "model.layers.1.self_attn.attn"
"""The draft model's layer, numbered after those of the target (v1/spec_decode/llm_base_proposer.py:1318)."""

_IDLE_SHARE: Final = 4
"""One in this many servers runs dummy batches, which write draft keys (docs/findings/vllm-dummy-drafts.md)."""


@dataclass(frozen=True)
class DraftedTokens:
    """The draft model's forwards for a request, after one of the target.

    As with EAGLE, the draft model's input at each position is the target's hidden state there and the next token, so
    its layer's key and value are those of the next token.

    Attributes:
        first: The first forward, over the target's tokens without rejected drafts.
        decodes: The decodes that follow.
        tokens: The tokens of the request, then the drafts that the draft model generates.
        drafts: The number of drafts.
        scheduled: The number of tokens of the target's forward.

    """

    first: ScheduledTokens
    decodes: tuple[ScheduledTokens, ...]
    tokens: Sequence[int]
    drafts: int
    scheduled: int

    @classmethod
    def after(
        cls, chunk: ScheduledTokens, tokens: Sequence[int], drafts: int, words: Vocabulary, *, kept: bool
    ) -> "DraftedTokens":
        """Return the forwards after `chunk`. `tokens` are all tokens up to the next one, then `drafts` more.

        The decodes count only if the drafts are `kept`, that is, not within a prompt.
        """
        end, begin = len(tokens) - drafts - 1, len(chunk.rows) - chunk.new
        rows = [words.row(token, position) for position, token in enumerate(tokens)][1:-1]
        decodes = range(1, drafts) if kept else ()
        return cls(
            replace(chunk, rows=rows[:end], new=end - begin),
            tuple(replace(chunk, rows=rows[: end + count], new=1) for count in decodes),
            tokens,
            drafts,
            chunk.new,
        )

    def generated(self) -> list[int]:
        """Return the drafts."""
        return list(self.tokens[len(self.tokens) - self.drafts :])

    def written(self) -> ScheduledTokens:
        """Return the tokens that the forwards write; rejected drafts, and drafts in a prompt, may leave anything."""
        count, most = self.first.new + len(self.decodes), max(self.scheduled, self.first.new + self.drafts - 1)
        return replace((self.first, *self.decodes)[-1], new=count, beyond=most - count)


class DraftPool(EnginePool):
    """The KV cache of the draft model's layer, with the target's block table."""

    names = ("draft_key_cache", "draft_value_cache")


class EngineDraftModel(EngineModel):
    """A draft model of one layer, which generates given drafts.

    Attributes:
        outs: The outputs of its forwards since `expect`.

    """

    layer_name = DRAFT_LAYER

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.outs: list[torch.Tensor] = []
        self._drafts: Sequence[Sequence[int]] = ()
        self._depth = 0

    def expect(self, drafts: Sequence[Sequence[int]]) -> None:
        """Set the drafts to generate for the requests of the batch, in its order, one of each per decode."""
        self.outs, self._drafts, self._depth = [], drafts, 0

    def __call__(self, **inputs: Any) -> Any:
        """Run the model. Returns the hidden states to sample from, and those for the next decode."""
        hidden = super().__call__(**inputs)
        return hidden, hidden

    def compute_logits(self, hidden: torch.Tensor) -> Any:
        """Return logits whose argmax are the next drafts."""
        if len(hidden) != len(self._drafts):
            raise RuntimeError(f"the release samples {len(hidden)} drafts for {len(self._drafts)} requests")
        tokens = [each[self._depth] for each in self._drafts]
        self._depth += 1
        return SimpleNamespace(argmax=lambda **_: torch.tensor(tokens, dtype=torch.int64, device=hidden.device))

    def _finish(self, layer: Callable[[], torch.Tensor]) -> torch.Tensor:
        hidden = super()._finish(layer)
        assert self.out is not None
        self.outs.append(self.out)
        return hidden

    def _embed(self, ids: Sequence[int], positions: Sequence[int]) -> Any:
        return super()._embed(ids, [position + 1 for position in positions])


class DraftingEngineRunner(EngineRunner):
    """The release's runner and scheduler with a draft model, whose layer has its own pool."""

    draft_type: type[EngineDraftModel] = EngineDraftModel
    draft_pool_type: type[EnginePool] = DraftPool

    def __init__(self, server: VllmServer, drafts: int, vocabulary: Vocabulary) -> None:
        self._expected: Mapping[str, DraftedTokens] = {}
        self._lengths: torch.Tensor | None = None
        super().__init__(server, drafts, vocabulary)

    def capture(self, index: int, step: Step) -> None:
        """Capture the graph of a step's size on a dummy run of both models."""
        self.draft_model.expect(())
        super().capture(index, step)

    def be_idle(self, step: Step) -> None:
        """Run a dummy batch while another rank runs `step`, on some servers."""
        if self._server.case.serving.seed % _IDLE_SHARE == 0:
            self.draft_model.expect(())
            super().be_idle(step)

    def draft(self, step: Step, scheduled: Any, answer: Answer, expected: Mapping[str, DraftedTokens]) -> Any:
        """Run the tokens, sample by `answer`, and generate the `expected` drafts. Returns the ModelRunnerOutput."""
        self._expected = expected
        self.draft_model.expect(())
        return self.forward(step, scheduled, answer)

    def take_drafts(self) -> dict[str, list[int]]:
        """Return the drafts of the last forward by request (v1/engine/core.py, post_step)."""
        with self._running():
            taken = self._call("take_draft_token_ids")
        return {} if taken is None else dict(zip(taken.req_ids, taken.draft_token_ids, strict=True))

    def written_by(self, drafted: Sequence[DraftedTokens]) -> WrittenCache:
        """Return the draft model's pool before and after a forward."""
        return self.draft_pool.written_by([each.written() for each in drafted])

    def attended_by(self, drafted: Mapping[str, DraftedTokens], first_rows: Mapping[str, int]) -> list[Attended]:
        """Return the attention expected for the rows of the draft model's forwards, in order."""
        names, outs = list(self._runner.input_batch.req_ids), self.draft_model.outs
        attend, queries = self.draft_pool.attended_by, self.draft_model.queries
        due = list(attend([each.first for each in drafted.values()], queries, [*first_rows.values()]))
        begin = 0
        for depth, out in enumerate(outs[:-1]):
            begin += len(out)
            decodes = {name: each.decodes[depth] for name, each in drafted.items() if each.decodes}
            due += attend([*decodes.values()], queries, [begin + names.index(name) for name in decodes])
        return due

    def again(self) -> torch.Tensor:
        """Run the target's last forward again without its writes. Returns its rows."""
        # The proposer has advanced the lengths (v1/spec_decode/llm_base_proposer.py, propose).
        assert self._lengths is not None
        self._runner.seq_lens.copy_(self._lengths)
        return super().again()

    def _set_limits(self) -> ServerLimits:
        limits = super()._set_limits()
        # A server has graphs of many sizes; this one has a single one for its draft decodes, which are padded to it.
        decodes = -(-limits.requests // (1 + self._drafts)) * (1 + self._drafts)
        return replace(limits, graphs=tuple(sorted({*limits.graphs, decodes})))

    def _add_other_rank(self, tensor: torch.Tensor, group: Any = None) -> None:
        """Add the other rank's counts: after its draft model's first forward, it decodes one token per request."""
        if self.draft_model.outs:
            tokens, mode = self._other_rank
            requests = tokens // (1 + self._drafts)
            self._other_rank = min(size for size in self._limits.graphs if size >= requests), mode
        super()._add_other_rank(tensor, group)

    def _sample(self) -> Any:
        names = self._runner.input_batch.req_ids
        self._lengths = self._runner.seq_lens.clone()
        self.draft_model.expect([self._expected[name].generated() for name in names])
        return super()._sample()

    def _make_model(self) -> EngineModel:
        server = self._server
        assert isinstance(server.pool, EnginePool)
        self.draft_pool = self.draft_pool_type(server.case, server.bench, type(server.pool.paged))
        layer = self._layers[DRAFT_LAYER] = self._make_draft_layer()
        self.draft_model = self.draft_type(
            server.loaded, server.case, server.bench, self.draft_pool, layer, self._words
        )
        return super()._make_model()

    def _make_draft_layer(self) -> Any:
        return self._make_layer()

    def _prepare(self, runner: Any) -> None:
        # Set where a draft model is loaded (v1/spec_decode/llm_base_proposer.py:1318).
        runner.drafter.model = self.draft_model
        runner.drafter._draft_attn_layer_names = {DRAFT_LAYER}  # noqa: SLF001

    def _pool_config(self, blocks: int) -> Any:
        config = super()._pool_config(blocks)
        for group in config.kv_cache_groups:
            # v1/core/kv_cache_planning.py:1655
            group.is_eagle_group = True
        return config

    def _replaced(self) -> dict[str, Any]:
        return {name: own for name, own in super()._replaced().items() if name == "_sample"}
