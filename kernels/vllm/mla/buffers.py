"""The buffers of a server's process for latent attention.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from typing import Any, Final

import torch

from attnfuzz.kernels.vllm.adaptations import ONE_LATENT_WORKSPACE

_SIZES: Final = ("FLASHINFER_MLA_WORKSPACE_BUFFER_SIZE", "FLASHINFER_MLA_LSE_WORKSPACE_BUFFER_SIZE")


def renew_buffers(loaded: Any, size: int, device: torch.device) -> None:
    """Drop the last server's buffers, and allocate workspaces of `size` bytes, as warm-ups do before a capture."""
    backend = loaded.backend
    for name in _SIZES:
        if hasattr(backend, name):
            setattr(backend, name, size)
    if loaded.release.version in ONE_LATENT_WORKSPACE:
        backend.g_fi_workspace = torch.zeros(size, dtype=torch.uint8)
    else:
        backend._fi_workspace = backend._fi_multi_ctas_kv_counter = None  # noqa: SLF001 - a process's own
        backend._get_workspace_buffer(return_lse=False)  # noqa: SLF001
    loaded.module("vllm.v1.worker.workspace").init_workspace_manager(device)
