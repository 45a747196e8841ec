"""How many processes share an attention layer, and how many such groups there are."""

from typing import Any

_sizes = {"attention": 1, "ranks": 1}


def initialize_dp_attention(server_args: Any, model_config: Any) -> None:
    """Take the sizes from the server's arguments."""
    del model_config
    _sizes["ranks"] = server_args.dp_size
    _sizes["attention"] = server_args.tp_size // server_args.dp_size


def get_attention_tp_size() -> int:
    """How many share a layer."""
    return _sizes["attention"]
