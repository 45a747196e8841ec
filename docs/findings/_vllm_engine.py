"""A vLLM engine on a CPU for a model with random weights, in this process, with little memory, traffic and log."""

import json
import os
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
CHUNK = 128


def engine(**options):
    """Return an LLM that computes at most 128 tokens in a step."""
    from vllm import LLM  # noqa: PLC0415 - slow, and only for the process that has the engine

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        return LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
            max_num_batched_tokens=CHUNK, max_num_seqs=8, num_gpu_blocks_override=64, **options,
        )  # fmt: skip
