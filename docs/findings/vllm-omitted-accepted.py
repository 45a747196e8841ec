"""A request that vLLM leaves out of one step loses its number of accepted tokens. Needs torch and an unpacked vllm.

Two requests of a model with recurrent layers verify two drafts each, and accept them. The next step is of one request
alone, and the one after it of both. The model runner's methods keep the batch; the scheduler's outputs are written
here. Only vLLM's modules of the model runner and of its batch are imported, with stand-ins for their imports.
"""

import logging
from types import SimpleNamespace
from unittest.mock import MagicMock

from _template import finish, requirements, show
from _vllm import code_of_the_release, import_file, installed, module_of

with requirements("torch"):
    import torch

DRAFTS, ACCEPTED = 2, 3
NAMES = ("A", "B")
MEMBERS = {
    "init_logger": logging.getLogger,
    "get_pp_group": MagicMock(),
    "instrument": lambda **_: lambda function: function,
    "MultiGroupBlockTable": MagicMock,
    "LogitsProcessors": MagicMock,
    "PIN_MEMORY": False,
    "SamplingType": SimpleNamespace(GREEDY=0),
    "copy_slice": MagicMock(),
    "length_from_prompt_token_ids_or_embeds": lambda ids, _: len(ids),
    "maybe_create_thinking_budget_state_holder": lambda *_: None,
}


class Rank:
    """The model runner of a server without asynchronous scheduling, and its batch."""

    def __init__(self):
        """Import the modules, and make the batch that the runner has."""
        folder = installed()
        state = module_of("v1.sample.logits_processor.state", MEMBERS)
        MEMBERS["BatchUpdateBuilder"] = state.BatchUpdateBuilder
        batch = import_file("vllm.v1.worker.gpu_input_batch", folder / "v1/worker/gpu_input_batch.py")
        module = import_file("vllm.v1.worker.gpu_model_runner", folder / "v1/worker/gpu_model_runner.py")
        self.type = module.GPUModelRunner
        self.batch = batch.InputBatch(4, 64, 16, torch.device("cpu"), 128, [64], [1], logitsprocs=MagicMock())
        self.runner = MagicMock(
            input_batch=self.batch,
            requests={name: self._request(batch, name) for name in NAMES},
            speculative_config=SimpleNamespace(use_ngram_gpu=lambda: False),
            use_async_scheduling=False,
            use_async_spec_decode=False,
            num_accepted_tokens=SimpleNamespace(gpu=torch.ones(4, dtype=torch.int64)),
        )
        self.runner.cache_config.mamba_cache_mode = "none"

    def _request(self, batch, name):
        sampling = MagicMock(sampling_type=0, top_p=1.0, top_k=0, logprobs=None, allowed_token_ids=None)
        sampling.frequency_penalty = sampling.presence_penalty = 0.0
        sampling.repetition_penalty, sampling.bad_words_token_ids = 1.0, None
        return batch.CachedRequestState(
            req_id=name, prompt_token_ids=[1, 2, 3], mm_features=[], sampling_params=sampling, generator=None,
            block_ids=([1],), num_computed_tokens=3, output_token_ids=[4],
        )  # fmt: skip

    def schedule(self, *names):
        """Run a step of these requests up to the model."""
        cached = SimpleNamespace(
            req_ids=list(names),
            resumed_req_ids=set(),
            num_computed_tokens=[3 for _ in names],
            new_block_ids=[None for _ in names],
            num_output_tokens=[1 for _ in names],
        )
        ordered = MagicMock(
            finished_req_ids=set(), new_block_ids_to_zero=None, kv_cache_block_copies=None, scheduled_new_reqs=[],
            num_scheduled_tokens=dict.fromkeys(names, 1 + DRAFTS), scheduled_cached_reqs=cached,
            scheduled_spec_decode_tokens={name: [5] * DRAFTS for name in names},
        )  # fmt: skip
        self.type._update_states(self.runner, ordered)  # noqa: SLF001 - there is no other way to it

    def accept(self, count):
        """Accept tokens of each request of the step, after the model."""
        sampled = torch.full((self.batch.num_reqs, 1 + DRAFTS), -1)
        sampled[:, :count] = 7
        self.type._update_states_after_model_execute(self.runner, sampled, None)  # noqa: SLF001

    def accepted(self, name):
        """Return the number of accepted tokens with which a request of the step goes on."""
        return int(self.batch.num_accepted_tokens_cpu[self.batch.req_id_to_index[name]])


with code_of_the_release():
    rank = Rank()
    rank.schedule("A", "B")
    rank.accept(ACCEPTED)
    rank.schedule("A")
    rank.accept(ACCEPTED)
    rank.schedule("A", "B")
    for name in NAMES:
        count = rank.accepted(name)
        show(f"{name} goes on after {count} of {ACCEPTED} accepted tokens", wrong=count != ACCEPTED)
finish()
