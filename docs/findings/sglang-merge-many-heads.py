"""SGLang's flashinfer merges prefills of many heads by LSEs in the wrong base. Needs torch, triton, an unpacked sglang.

The kernel runs in Triton's interpreter. Only SGLang's module with it is imported. FlashInfer's wrappers return LSEs in
base 2 (its issue #2113).
"""

from _template import finish, requirements, show
from _triton import replace_module
from _vllm import import_file, installed

with requirements("torch triton"):
    import torch
    import triton

folder = installed("sglang", pip="sglang")
replace_module("sglang")
merge = import_file("sglang.merge_state", folder / "kernels/ops/attention/merge_state.py").merge_state_triton

print(f"triton {triton.__version__}, interpreted")
for cached, new in ((1, 1), (64, 4), (4096, 16)):
    # All logits are 0: the LSE of a part in base 2 is the logarithm of its keys. The values of new keys are 1.
    lse = [torch.tensor([[float(keys)]]).log2() for keys in (new, cached)]
    out, _ = merge(torch.ones(1, 1, 64), lse[0], torch.zeros(1, 1, 64), lse[1])
    weight, due = out[0, 0, 0].item(), new / (new + cached)
    show(f"{new} new keys after {cached} weigh {weight:.4%}; exact {due:.4%}", wrong=abs(weight - due) > due / 1000)
finish()
