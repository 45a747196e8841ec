"""Prints the table of docs/reference/gpu-backends.md: the kernels that each backend on a GPU calls, and its GPUs.

python scripts/gpu_backends.py
"""

import sys

from attnfuzz.harness.cli.backends import where
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

_METHODS = (".plan", ".run", ".begin_forward", ".forward")


def page() -> str:
    """Render the table in markdown, with one row for all backends that call the same kernels on the same GPUs."""
    groups: dict[tuple[str, str], list[str]] = {}
    for backend in GPU_BACKENDS:
        if "@" not in backend.name:  # a revision is a backend with a reported bug
            groups.setdefault((_kernels(backend), where(backend)), []).append(f"`{backend.name}`")
    lines = ["| backends | kernels | GPUs |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {', '.join(names)} | {kernels} | {gpus} |" for (kernels, gpus), names in groups.items())]
    )


def _kernels(backend: GpuBackend) -> str:
    names = dict.fromkeys(_without_method(op.name) for op in backend.kernels)
    return ", ".join(f"`{name}`" for name in names)


def _without_method(name: str) -> str:
    return next((name.removesuffix(method) for method in _METHODS if name.endswith(method)), name)


if __name__ == "__main__":
    sys.stdout.write(page() + "\n")
