"""A vLLM server on this CPU, as tests and benchmarks start it, with or without a mistake planted in its planning."""

import shlex
from pathlib import Path

PLANTED = Path(__file__).parent / "planted_vllm"

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Few threads, little memory, no traffic; flushing is one of vLLM's endpoints for development."""

SIZES = (
    "--block-size=32",
    "--max-num-batched-tokens=128",
    "--max-num-seqs=32",
    "--max-model-len=1024",
    "--num-gpu-blocks-override=64",
    "--dtype=float32",
    "--enforce-eager",
)
"""Sizes with many edges for short prompts, and a pool that 16 requests overflow."""

SPECULATION = (
    '--speculative-config={"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3,"prompt_lookup_min":1}'
)


def server_command(python: str, model: Path, port: int, plugin: Path, planted: str) -> str:
    """The command line of a server with a mistake, or with "none"; "none-speculating" drafts tokens."""
    speculates = planted.startswith(("speculation", "none-speculating"))
    mistake = "none" if planted.startswith("none") else planted
    settings = {**ENVIRONMENT, "PYTHONPATH": f"{plugin}:{PLANTED}", "ATTNFUZZ_PLANTED": mistake}
    sizes = (*SIZES, SPECULATION) if speculates else SIZES
    words = ["env", *(f"{name}={value}" for name, value in settings.items()), python, "-m"]
    words += ["vllm.entrypoints.openai.api_server", f"--model={model}", "--host=127.0.0.1", f"--port={port}", *sizes]
    return shlex.join(words)


def write_plugin(folder: Path) -> Path:
    """Write the metadata by which vLLM finds the plugin, and return its folder."""
    metadata = folder / "plugin" / "attnfuzz_planted-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: attnfuzz-planted\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nplanted = vllm_planted:plant\n")
    return metadata.parent
