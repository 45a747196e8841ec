"""Changes to a release that make its sparse attention run without a GPU or a model, as in `adaptations`.

A file and line is that of SGLang 0.5.23 below sglang/srt/ unless another version is named.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import torch
from packaging.version import Version

from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.imports import imported
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.versions import span
from attnfuzz.kernels.sglang.adaptations import ChangedName
from attnfuzz.kernels.sglang.sparse.kernels import COMPILED, LIBRARIES, OF_SGL_KERNEL
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS

_BACKEND: Final = "layers.attention.dsa_backend"
_INDEXER: Final = "layers.attention.dsa.dsa_indexer"
_NAMES: Final = tuple(SPARSE_KINDS)


def _on_cuda() -> bool:
    return True


def _concatenated(tensors: Sequence[torch.Tensor], dim: int = -1) -> torch.Tensor:
    return torch.cat(list(tensors), dim=dim)


def should_chunk(*, num_rows: int, num_cols: int, get_budget_bytes: Callable[[], int], rocm: bool) -> tuple[bool, int]:
    """Stand in for the test whether scores take more memory than there is, which small ones never do."""
    del rocm
    budget = get_budget_bytes()
    return 0 < budget < num_rows * num_cols * 4, budget


def _change(
    module: str, name: str, value: Any, source: str, reason: str, first: str = "0.5.13", before: str | None = None
) -> ChangedName:
    return ChangedName(module, name, value, span(first, before=before), source, reason, kinds=_NAMES)


def _as_it_is(values: torch.Tensor, *_: object) -> tuple[torch.Tensor, None]:
    return values, None


def _device_sm() -> int:
    major, minor = torch.cuda.get_device_capability()
    return major * 10 + minor


def _is_blackwell() -> bool:
    return torch.cuda.get_device_capability()[0] == _BLACKWELL


def _platform() -> SimpleNamespace:
    return SimpleNamespace(is_sm100=_is_blackwell())


_BLACKWELL: Final = 10
"""The major part of its compute capability."""

_OF_KIND: Final = "the kind of server has a GPU"

_DEEP_GEMM: Final = SimpleNamespace(**LIBRARIES["deep_gemm"])

_A_GPU: Final = "the code for CUDA runs"
_CONFIG: Final = "configs are stubs"

CHANGES: Final = (
    *(
        _change(module, name, value, source, _A_GPU)
        for module, name, value, source in (
            (_BACKEND, "is_cuda", _on_cuda, "layers/attention/dsa_backend.py:1344"),
            (_INDEXER, "_is_cuda", True, "layers/attention/dsa/dsa_indexer.py:1924"),
        )
    ),
    _change(
        "layers.attention.dsa.dsa_metadata_manager",
        "is_cuda",
        _on_cuda,
        "layers/attention/dsa/dsa_metadata_manager.py:236",
        _A_GPU,
        "0.5.20",
    ),
    _change(_BACKEND, "_is_cuda", True, "layers/attention/dsa_backend.py:3406", _A_GPU, "0.5.22"),
    *(
        replace(_change(module, "deep_gemm", _DEEP_GEMM, source, "it is imported if there is a GPU"), on_gpus=True)
        for module, source in (
            (_BACKEND, "layers/attention/dsa_backend.py:858 (0.5.14)"),
            (_INDEXER, "layers/attention/dsa/dsa_indexer.py:146"),
        )
    ),
    _change(_BACKEND, "is_deepseek_dsa", lambda _: True, "layers/attention/dsa_backend.py:526", _CONFIG),
    _change(
        _BACKEND, "get_dsa_index_topk", lambda config: config.index_topk, "layers/attention/dsa_backend.py:531", _CONFIG
    ),
    _change(_BACKEND, "get_dsa_index_kpool", lambda _: 1, "layers/attention/dsa_backend.py:532", _CONFIG, "0.5.20"),
    _change(
        _BACKEND,
        "_compiled_cat",
        _concatenated,
        "layers/attention/dsa_backend.py:321",
        "torch.compile would take the time of many cases",
    ),
    _change("utils", "get_device_sm", _device_sm, "layers/attention/dsa_backend.py:4076", _OF_KIND),
    _change("utils", "is_blackwell", _is_blackwell, "layers/attention/dsa_backend.py:4088", _OF_KIND),
    _change(_BACKEND, "get_platform", _platform, "layers/attention/dsa_backend.py:954", _OF_KIND, "0.5.19"),
    _change(
        _BACKEND,
        "is_sm100_supported",
        _is_blackwell,
        "layers/attention/dsa_backend.py:672 (0.5.18)",
        _OF_KIND,
        before="0.5.19",
    ),
    _change(
        _INDEXER,
        "mqa_logits_should_chunk",
        should_chunk,
        "layers/attention/dsa/dsa_indexer.py:1574",
        "scores of these cases are small",
        "0.5.21",
    ),
    _change(
        "layers.attention.dsa.triton_kernel",
        "act_quant",
        _as_it_is,
        "layers/attention/dsa/dsa_indexer.py:1364 (0.5.14)",
        "queries are given as they are quantised",
        before="0.5.15",
    ),
)


def sparse_changes_in(version: Version) -> tuple[ChangedName, ...]:
    """Return the changes for a version."""
    return tuple(change for change in CHANGES if version in change.versions)


def import_sparse(release: Release) -> None:
    """Import the modules of sparse attention that the release has, with stand-ins for its compiled kernels."""
    library = sys.modules.get("sgl_kernel")
    if library is not None:
        vars(library).update(OF_SGL_KERNEL)
    for kind in SPARSE_KINDS.values():
        with suppress(ReleaseError):
            imported(release, kind.path)
    with suppress(ReleaseError):
        imported(release, f"sglang.srt.{_INDEXER}")
    for name, (function, made) in COMPILED.items():
        with suppress(ReleaseError):
            setattr(imported(release, name), function, _returning(made))


def _returning(made: SimpleNamespace) -> Callable[..., SimpleNamespace]:
    return lambda *_: made
