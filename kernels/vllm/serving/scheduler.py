"""A release's own Scheduler, with its KVCacheManager, BlockPool and Requests.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.vllm.loader import ASYNC_SCHEDULER, SCHEDULER


class ReceivedTokens(NamedTuple):
    """The tokens that a client receives after a forward, and whether its request has ended."""

    tokens: tuple[int, ...]
    ended: bool


class EngineScheduler:
    """The scheduler of a server, for the pool described by `pool_config`. `config` is its VllmConfig."""

    def __init__(self, loaded: Any, config: Any, pool_config: Any, page_size: int) -> None:
        self._loaded = loaded
        utils = loaded.module("vllm.v1.core.kv_cache_utils")
        hashing = loaded.module("vllm.utils.hashing").sha256
        # As the engine does before it makes requests (v1/engine/core.py, EngineCore.__init__).
        utils.init_none_hash(hashing)
        # Since 0.33.0, the hash of a block includes the tokens after it that a draft model has read.
        ahead = [config.num_hash_lookahead_tokens] if config.num_hash_lookahead_tokens else []
        self._hasher = utils.get_request_block_hasher(page_size, hashing, *ahead)
        own = loaded.module(SCHEDULER).Scheduler
        if config.scheduler_config.async_scheduling:
            # config/scheduler.py:234
            own = loaded.module(ASYNC_SCHEDULER).AsyncScheduler
        self._own = own(
            vllm_config=config,
            kv_cache_config=pool_config,
            structured_output_manager=_without_grammars(),
            block_size=page_size,
            # 0.29.0: v1/core/sched/scheduler.py:226
            mm_registry=ServerMock("mm_registry", supports_multimodal_inputs=lambda _: False),
            log_stats=False,
        )

    def send(self, name: str, prompt: Sequence[int], most: int) -> None:
        """Send a request with these ids, for `most` more tokens."""
        sampling = self._loaded.module("vllm.sampling_params").SamplingParams(
            temperature=0.0, max_tokens=most, ignore_eos=True
        )
        request = self._loaded.module("vllm.v1.request").Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
        )
        self._own.add_request(request)

    def abort(self, name: str) -> None:
        """Abort a request, as when its client disconnects."""
        status = self._loaded.module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
        self._own.finish_requests(name, status)

    def propose(self, drafts: Mapping[str, Sequence[int]]) -> None:
        """Pass a drafter's tokens to the scheduler, as after each forward (v1/engine/core.py, post_step)."""
        proposed = self._loaded.module("vllm.v1.outputs").DraftTokenIds(
            list(drafts), [list(each) for each in drafts.values()]
        )
        self._own.update_draft_token_ids(proposed)

    def schedule(self) -> Any:
        """Return the SchedulerOutput of the next forward."""
        return self._own.schedule()

    def update(self, scheduled: Any, output: Any) -> dict[str, ReceivedTokens]:
        """Pass a forward's ModelRunnerOutput to the scheduler. Returns the tokens that clients receive."""
        of_clients = self._own.update_from_output(scheduled, output)
        return {
            each.request_id: ReceivedTokens(tuple(each.new_token_ids), ended=each.finish_reason is not None)
            for outputs in of_clients.values()
            for each in outputs.outputs
        }

    def blocks(self, name: str) -> list[int]:
        """Return the blocks of a request, in order."""
        (blocks,) = self._own.kv_cache_manager.get_block_ids(name)
        return list(blocks)

    def preemptions(self, name: str) -> int:
        """Return the number of times that a request has been preempted."""
        return int(self._own.requests[name].num_preemptions)


def _without_grammars() -> ServerMock:
    """Return a manager of structured outputs for requests that have none."""
    return ServerMock(
        "structured_output_manager",
        should_advance=lambda *_, **__: False,
        accept_tokens=lambda *_, **__: True,
        validate_tokens=lambda _, tokens: tokens,
    )
