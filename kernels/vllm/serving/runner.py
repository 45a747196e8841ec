"""A release's model runner under its own scheduler.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.vllm.config import ServerLimits
from attnfuzz.kernels.vllm.runner import RUNNER, ModelRunner
from attnfuzz.kernels.vllm.server import VllmServer
from attnfuzz.kernels.vllm.serving.config import add_scheduler
from attnfuzz.kernels.vllm.serving.model import EngineModel
from attnfuzz.kernels.vllm.serving.scheduled_pool import drafted_beyond
from attnfuzz.kernels.vllm.serving.scheduler import EngineScheduler
from attnfuzz.kernels.vllm.serving.stand_ins import REJECTED, replace_compiled, replace_features, replace_sampling
from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary
from attnfuzz.reference.case import Step

Answer = Callable[[str], Sequence[int]]
"""The tokens that the model generates for a request of a forward."""


class EngineRunner(ModelRunner):
    """The release's runner and scheduler on a server with `drafts` draft tokens per request.

    Attributes:
        scheduler: The scheduler.

    """

    model_type: type[EngineModel] = EngineModel
    model: EngineModel

    def __init__(self, server: VllmServer, drafts: int, vocabulary: Vocabulary) -> None:
        self._words = vocabulary
        self._answer: Answer = lambda _: ()
        replace_sampling(server.loaded.module(RUNNER))
        replace_compiled(server.loaded.module(RUNNER))
        replace_features(server.loaded.module("vllm.v1.core.sched.output"))
        super().__init__(server, drafts)
        blocks = blocks_of(server)
        add_scheduler(server.loaded, self._config, server.case, self._limits, blocks)
        with self._running():
            self.scheduler = EngineScheduler(
                server.loaded, self._config, self._pool_config(blocks), server.pool.paged.page_size
            )

    def capture_all(self, index: int, step: Step) -> None:
        """Capture a graph of each size, the largest first, as at a server's start."""
        for size in reversed(self._limits.graphs):
            self.capture(index, msgspec.structs.replace(step, padded_tokens=size))

    def be_idle(self, step: Step) -> None:
        """Run a dummy batch while another rank runs `step`."""
        with self._running(step):
            self._be_idle(step)

    def forward(self, step: Step, scheduled: Any, answer: Answer) -> Any:
        """Run the scheduled tokens, and sample by `answer`. Returns the output, for `result`."""
        self._answer = answer
        with self._running(step):
            result = self._call("execute_model", scheduled)
            # None means that tokens are to be sampled.
            return self._call("sample_tokens", None) if result is None else result

    def result(self, output: Any) -> Any:
        """Return the ModelRunnerOutput of a forward, whose tokens an asynchronous server copies in the background."""
        with self._running():
            return output.get_output() if hasattr(output, "get_output") else output

    def first_rows(self, scheduled: Any) -> dict[str, int]:
        """Return the first rows of the requests of a forward, in the order of the runner's batch."""
        begins, row = {}, 0
        for name in self._runner.input_batch.req_ids:
            if name in scheduled.num_scheduled_tokens:
                begins[name] = row
                row += scheduled.num_scheduled_tokens[name]
        return begins

    def _set_limits(self) -> ServerLimits:
        case, limits = self._server.case, super()._set_limits()
        longest = max(1, *case.slot_lengths().values())
        whole = case.serving.budget or sum(case.slot_lengths().values())
        # The last generated token counts towards the length, although it is never computed.
        return replace(
            limits,
            # If a request is near the limit, the whole batch gets no drafts (v1/worker/gpu_model_runner.py:4254).
            model_len=longest + 1 + case.max_len_slack + drafted_beyond(case),
            tokens=max(limits.tokens, whole, limits.requests * (1 + self._drafts)),
        )

    def _spec(self) -> Any:
        """Return the layer's KVCacheSpec. In half of the cases with a window, blocks that leave it are freed."""
        if self._window is None or self._server.case.serving.seed % 2:
            return super()._spec()
        interface = self._server.loaded.module("vllm.v1.kv_cache_interface")
        return interface.SlidingWindowSpec(**self._spec_fields(interface))

    def _make_model(self) -> EngineModel:
        server = self._server
        return self.model_type(server.loaded, server.case, server.bench, server.pool, self._layer, self._words)

    def _replaced(self) -> dict[str, Any]:
        return {
            "_sample": lambda _, *__: self._sample(),
            # Drafts are handed to the scheduler directly.
            "_copy_draft_token_ids_to_cpu": lambda *_, **__: None,
            "propose_draft_token_ids": lambda runner, *_, **__: [[] for _ in runner.input_batch.req_ids],
        }

    def _sample(self) -> Any:
        """Return the SamplerOutput, with the tokens that the model generates for each request of the batch."""
        drawn = [list(self._answer(name)) for name in self._runner.input_batch.req_ids]
        width = max(map(len, drawn))
        with outside():
            tokens = torch.tensor([each + [REJECTED] * (width - len(each)) for each in drawn], dtype=torch.int32)
        module = self._server.loaded.module("vllm.v1.outputs")
        return module.SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)


def blocks_of(server: VllmServer) -> int:
    """Return the number of blocks of the engine's pool: the case's pages minus its shortage; any sequence fits."""
    case, paged = server.case, server.pool.paged
    longest = -(-(max(case.slot_lengths().values(), default=1) + drafted_beyond(case)) // paged.page_size)
    return max(paged.total_pages - case.serving.shortage, 1 + longest)
