"""The configuration that is set while layers are built and steps are planned."""

from typing import Any

_current_vllm_config: Any = None


def get_current_vllm_config() -> Any:
    """The configuration."""
    assert _current_vllm_config is not None
    return _current_vllm_config
