"""At the end of a chunk of a prompt, vLLM's drafter gets the prompt's last token. Needs torch and an unpacked vllm.

vLLM itself is not imported: one method of its proposer is compiled from its file, and run on the state of a request
whose prompt is partly computed. A plain loop replaces the Triton kernel that it launches.
"""

import ast
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import code_of_the_release, installed

with requirements("torch"):
    import torch

METHOD = "prepare_next_token_ids_padded"
PROMPT, COMPUTED = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19], 4


class Kernel:
    """The kernel: the backup token of a request without a sample, and otherwise its last sampled token."""

    def __getitem__(self, _):
        return self

    def __call__(self, sampled, discarded, backup, following, counts, *_, **__):
        """Run it."""
        for row, tokens in enumerate(sampled.tolist()):
            valid = [] if discarded[row] else [token for token in tokens if token != -1]
            counts[row] = len(valid)
            following[row] = valid[-1] if valid else backup[row]


def proposers_method():
    """Return the method of the installed vLLM's proposer."""
    file = installed() / "v1/spec_decode/llm_base_proposer.py"
    functions = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))
    method = next(node for node in functions if node.name == METHOD)
    method.returns = None
    for argument in method.args.args:
        argument.annotation = None
    kernel = Kernel()
    names = {
        "torch": torch,
        "next_power_of_2": lambda number: number,
        "_eagle_prepare_next_token_padded": kernel,
        "eagle_prepare_next_token_padded_kernel": kernel,
    }
    exec(compile(ast.Module([method], []), str(file), "exec"), names)  # noqa: S102 - code of the installed vLLM
    return names[METHOD]


backup = SimpleNamespace(np=[0], gpu=torch.zeros(1, dtype=torch.int32))
backup.copy_to_gpu = lambda count: backup.gpu[:count].copy_(torch.tensor(backup.np[:count]))
drafter = SimpleNamespace(backup_next_token_ids=backup)
request = SimpleNamespace(get_token_id=lambda index: PROMPT[index] if index < len(PROMPT) else -1)
# The number of tokens of a request is that of its whole prompt (InputBatch.add_request).
batch = SimpleNamespace(num_reqs=1, req_ids=["0"], num_tokens_no_spec=[len(PROMPT)], vocab_size=100)
with code_of_the_release():
    following, _ = proposers_method()(drafter, torch.tensor([[50]]), {"0": request}, batch, torch.tensor([True]))
seen, due = following.item(), PROMPT[COMPUTED]
show(f"prompt {PROMPT}, of which {COMPUTED} tokens are computed")
show(f"the draft model's token at position {COMPUTED - 1}: {seen}; the next one is {due}", wrong=seen != due)
finish()
