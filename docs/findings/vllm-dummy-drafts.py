"""A dummy batch of vLLM's drafter writes draft keys to slots of earlier proposals. Needs torch and an unpacked vllm.

Three events of a data-parallel rank run on the CPU: it drafts for a prompt of request A; A ends, and B gets one of A's
blocks, drafts and ends too, so that the block may be in the prefix cache; the rank has no requests, and runs a dummy
batch, padded to the tokens of another rank. Only vLLM's module of the proposer is imported, with stand-ins for its
imports. The draft model is one layer that stores the id of each token in the slot that it is given.
"""

import contextlib
import inspect
import logging
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import code_of_the_release, module_of

with requirements("torch"):
    import torch

LAYER = "draft.layers.0"
PAGE, LIMIT = 4, 32
MEMBERS = {"init_logger": logging.getLogger, "PADDING_SLOT_ID": -1}


class Rank:
    """A data-parallel rank with a drafter that proposes one token, and a draft model's cache of three blocks.

    Block 0 is the null block.
    """

    def __init__(self, module):
        """Make the proposer with the buffers that its __init__ makes."""
        self.cache, self.slots = torch.full((3 * PAGE,), -1), None
        module.set_forward_context = self._in_context
        drafter = self.drafter = object.__new__(module.SpecDecodeBaseProposer)
        drafter.__dict__ |= {
            "method": "eagle", "num_speculative_tokens": 1, "parallel_drafting": False, "eplb_state": None,
            "needs_extra_input_slots": False, "supports_mm_inputs": False, "pass_hidden_states_to_model": True,
            "uses_mrope": False, "uses_xdrope_dim": 0, "draft_uses_xdrope_dim": 0, "use_local_argmax_reduction": False,
            "use_heterogeneous_vocab": False, "_share_mtp_indices": False, "_enable_probabilistic_draft_probs": False,
            "constant_draft_positions": False, "_draft_attn_layer_names": {LAYER}, "draft_attn_groups": [],
            "vllm_config": SimpleNamespace(model_config=SimpleNamespace(uses_mrope=False)),
            "input_ids": torch.zeros(LIMIT, dtype=torch.int32), "positions": torch.zeros(LIMIT, dtype=torch.int64),
            "hidden_states": torch.zeros(LIMIT, 1), "model": self,
            "_slot_mapping_buffer": torch.zeros(LIMIT, dtype=torch.int64),
        }  # fmt: skip
        drafter.model_returns_tuple = lambda: False
        drafter.build_per_group_and_layer_attn_metadata = lambda _: ([], {})
        self.pad(0)

    def pad(self, tokens):
        """Set the tokens of the other rank: with graphs, all ranks are padded to the largest."""
        vars(self.drafter)["_determine_batch_execution_and_padding"] = lambda own, **_: (None, max(own, tokens), None)

    @contextlib.contextmanager
    def _in_context(self, *_, slot_mapping, **__):
        self.slots = slot_mapping.get(LAYER)
        yield

    def __call__(self, *, input_ids, **_):
        """Run the draft model: an Attention layer writes whenever it has a slot, with or without metadata."""
        if self.slots is not None:
            written = self.slots >= 0
            self.cache[self.slots[written]] = input_ids[written].long()
        return torch.zeros(len(input_ids), 1)

    def compute_logits(self, hidden):
        """Return the logits of one token."""
        return hidden

    def draft(self, ids, slots):
        """Propose a token after a prompt whose tokens have the slots."""
        ids = torch.tensor(ids, dtype=torch.int32)
        batch = SimpleNamespace(
            batch_size=lambda: 1,
            query_start_loc=torch.tensor([0, len(ids)]),
            slot_mapping=torch.tensor(slots),
            num_actual_tokens=len(ids),
        )
        given = {
            "num_speculative_tokens": 1, "target_token_ids": ids, "target_positions": torch.arange(len(ids)),
            "target_hidden_states": torch.zeros(len(ids), 1), "next_token_ids": ids[-1:] + 1,
            "token_indices_to_sample": None, "common_attn_metadata": batch, "sampling_metadata": None,
        }  # fmt: skip
        asked = inspect.signature(type(self.drafter).propose).parameters
        self.drafter.propose(**{name: value for name, value in given.items() if name in asked})

    def be_idle(self, others):
        """Run a dummy batch beside a rank with `others` tokens, without slots (GPUModelRunner._dummy_run)."""
        self.pad(others)
        self.drafter.dummy_run(2, use_cudagraphs=True, slot_mappings={LAYER: torch.full((others,), -1)})


with code_of_the_release():
    rank = Rank(module_of("v1.spec_decode.llm_base_proposer", MEMBERS))
    rank.be_idle(2)
    null = rank.cache[0].item()
    rank.draft([10, 11, 12, 13, 14, 15, 16, 17], range(PAGE, 3 * PAGE))
    rank.draft([20, 21, 22, 23], range(2 * PAGE, 3 * PAGE))
    before = rank.cache[2 * PAGE :].tolist()
    rank.be_idle(4)
    same = rank.cache[2 * PAGE :].tolist()
    rank.be_idle(8)
    after = rank.cache[2 * PAGE :].tolist()
wrong = null != -1
show(f"a dummy batch before any request writes to the null block: {'yes' if wrong else 'no'}", wrong=wrong)
show(f"draft keys of B's block, of tokens: {before}")
show(f"after a dummy batch of 4 tokens:    {same}")
wrong = after != before
show(f"after a dummy batch of 8 tokens:    {after}" + (" of request A" if wrong else ""), wrong=wrong)
finish()
