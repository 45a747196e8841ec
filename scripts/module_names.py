"""Compares the names of FlashInfer's modules with their sources, on a CPU.

python scripts/module_names.py

Each generator is called with one set of parameters, and then with one parameter changed at a time. Two modules of one
name are one folder and one library, so in one process the second wrapper gets the kernels of the first. It exits with 1
if names collide, with 0 if none do, and with 2 without FlashInfer. Nothing is compiled.
"""

import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["FLASHINFER_WORKSPACE_BASE"] = tempfile.mkdtemp()
os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")

try:
    import torch
    from flashinfer import attention
    from flashinfer.jit.attention import modules
    from flashinfer.utils import PosEncodingMode

    from attnfuzz.kernels.gpu.wrappers.sinks import module_of_sinks
except ImportError as missing:
    sys.stderr.write(f"{missing}: pip install flashinfer-python\n")
    sys.exit(2)

_16, _8 = (torch.bfloat16, torch.float16), (torch.bfloat16, torch.float8_e4m3fn)
VALUES: Mapping[str, tuple[Any, Any]] = {
    "backend": ("fa2", "fa3"),
    "dtype_q": _16,
    "dtype_kv": _8,
    "dtype_o": _16,
    "dtype_idx": (torch.int32, torch.int64),
    "head_dim": (64, 128),
    "head_dim_qk": (64, 128),
    "head_dim_vo": (64, 128),
    "head_dim_ckv": (512, 256),
    "head_dim_kpe": (64, 32),
    **{f"pos_encoding_mode{half}": (0, 1) for half in ("", "_p", "_d")},
    **{
        f"{name}{half}": (False, True)
        for name in ("use_sliding_window", "use_logits_soft_cap", "use_fp16_qk_reduction", "use_profiler")
        for half in ("", "_p", "_d")
    },
    # Of the wrapper with sinks.
    "q_data_type": _16,
    "kv_data_type": _8,
    "window_left": (-1, 7),
}
GENERATORS = (
    "gen_single_prefill_module",
    "gen_single_decode_module",
    "gen_batch_prefill_module",
    "gen_batch_decode_module",
    "gen_pod_module",
    "gen_batch_pod_module",
    "gen_batch_attention_module",
    "gen_batch_mla_module",
    "gen_batch_prefill_attention_sink_module",
)


def of_sinks(**arguments: Any) -> Any:
    """Return the module that BatchAttentionWithAttentionSinkWrapper compiles for the arguments of its constructor."""
    arguments["pos_encoding_mode"] = PosEncodingMode(arguments["pos_encoding_mode"]).name
    return module_of_sinks(**arguments)


def written(generate: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a module, and all that is compiled for it: its generated files and flags."""
    spec = generate(**arguments)
    folders = {Path(source).parent for source in spec.sources if spec.name in str(source)}
    files = sorted(path for folder in folders for path in folder.iterdir())
    flags = [str(getattr(spec, name, None)) for name in ("extra_cflags", "extra_cuda_cflags", "sources")]
    return spec.name, "\n".join([*(path.read_text() for path in files), *flags])


def collisions(generate: Callable[..., Any], names: list[str]) -> Iterator[str]:
    """Yield the parameters that change the sources, and not the name."""
    first = {name: VALUES[name][0] for name in names}
    for backend in VALUES["backend"] if "backend" in names else (None,):
        plain = {**first, "backend": backend} if backend else first
        for name in names:
            if name != "backend":
                # Files of one folder are overwritten: each is read right after it is made.
                one, other = written(generate, plain), written(generate, {**plain, name: VALUES[name][1]})
                if one[0] == other[0] and one[1] != other[1]:
                    yield f"{name}{f' ({backend})' if backend else ''}"


def main() -> int:
    """Print a line for each generator."""
    sinks = inspect.signature(attention.BatchAttentionWithAttentionSinkWrapper.__init__).parameters
    of_wrapper = [name for name in sinks if name in VALUES]
    rows: list[tuple[str, Callable[..., Any], list[str]]] = [
        ("BatchAttentionWithAttentionSinkWrapper", of_sinks, of_wrapper)
    ]
    for name in GENERATORS:
        generate = getattr(modules, name)
        rows.append((name, generate, [each for each in inspect.signature(generate).parameters if each in VALUES]))
    found = False
    for name, generate, names in rows:
        missing = list(collisions(generate, names))
        found |= bool(missing)
        verdict = f"not in its name: {', '.join(missing)}" if missing else "all in its name"
        sys.stdout.write(f"{name}: {verdict}\n")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
