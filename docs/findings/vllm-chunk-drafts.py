"""At the end of a chunk of a prompt, vLLM's drafter gets the prompt's last token. Needs torch and an unpacked vllm.

vLLM itself is not imported: one method of its proposer is compiled from its file, and run on the state of a request
whose prompt is partly computed. A plain loop replaces the Triton kernel that it launches.
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

try:
    import torch
except ImportError as error:
    print(f"{error}: pip install torch")
    sys.exit(2)

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
    found = importlib.util.find_spec("vllm")
    if found is None:
        print("vllm is not installed: pip install --no-deps vllm==0.33.0")
        sys.exit(2)
    file = Path(next(iter(found.submodule_search_locations)), "v1/spec_decode/llm_base_proposer.py")
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


def main():
    """Print the draft model's token at the last computed position; return 1 if it is not the prompt's next one."""
    backup = SimpleNamespace(np=[0], copy_to_gpu=lambda _: None)
    drafter = SimpleNamespace(backup_next_token_ids=backup)
    request = SimpleNamespace(get_token_id=lambda index: PROMPT[index] if index < len(PROMPT) else -1)
    # The number of tokens of a request is that of its whole prompt (InputBatch.add_request).
    batch = SimpleNamespace(num_reqs=1, req_ids=["0"], num_tokens_no_spec=[len(PROMPT)], vocab_size=100)
    backup.gpu = torch.zeros(1, dtype=torch.int32)
    backup.copy_to_gpu = lambda count: backup.gpu[:count].copy_(torch.tensor(backup.np[:count]))
    try:
        following, _ = proposers_method()(drafter, torch.tensor([[50]]), {"0": request}, batch, torch.tensor([True]))
    except (AttributeError, AssertionError, TypeError) as error:
        print(f"the code is not that of 0.33.0: {error!r}")
        return 2
    print(f"prompt {PROMPT}, of which {COMPUTED} tokens are computed")
    print(f"the draft model's token at position {COMPUTED - 1}: {following.item()}; the next one is {PROMPT[COMPUTED]}")
    return int(following.item() != PROMPT[COMPUTED])


if __name__ == "__main__":
    sys.exit(main())
