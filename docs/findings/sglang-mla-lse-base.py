"""SGLang 0.5.23, trtllm_mla: a prefill with a prefix merges its parts by LSEs in the wrong base. Needs torch.

The smallest case: one new token after a prefix of one, one head. Each part attends to one key, so its
output is that key's value, and its LSE the key's logit. FlashInfer's kernels return it in base 2 (its issue #2113), but
SGLang's merge treats it as natural.
"""

import math

from _template import finish, requirements, show

with requirements("torch"):
    import torch

logits = torch.tensor([-0.3844572603702545, -0.3236345946788788], dtype=torch.float64)
values = torch.tensor([1.8203125, -0.6015625], dtype=torch.float64)
lse = logits / math.log(2)


def merged(base):
    """kernels/ops/attention/merge_state.py, lines 32 to 57, with the power of `base` instead of exp."""
    weights = base ** (lse - lse.max())
    return float((values * weights / weights.sum()).sum().bfloat16())


exact = float((torch.softmax(logits, 0) * values).sum())
print(f"exact {exact:.6f}, merged in base 2 {merged(2.0):.6f}, merged in base e {merged(math.e):.6f}, SGLang 0.554688")
wrong = abs(merged(math.e) - 0.554688) < 1e-6 < abs(merged(2.0) - merged(math.e))
show("SGLang's is the merge in base e of numbers in base 2" if wrong else "nothing is wrong", wrong=wrong)

# The last row of 16 new causal keys after a prefix of 4096 keys; all logits are 0.
lse = torch.tensor([4096.0, 16.0], dtype=torch.float64).log2()
for base, name in ((2.0, "2"), (math.e, "e")):
    weights = base ** (lse - lse.max())
    show(f"base {name}: 16 new keys after 4096 weigh {float(weights[1] / weights.sum()):.4%}; exact {16 / 4112:.4%}")
finish()
