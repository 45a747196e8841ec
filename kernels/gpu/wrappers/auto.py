"""FlashInfer's wrapper for paged prefill with backend="auto", which chooses a kernel in each plan.

On Hopper it takes FA3, but FA2 for custom masks and, since 0.7.4, if no request has more than 64 queries (prefill.py,
_determine_auto_backend): coverage has features on both sides of each condition, "mask" and "longest q=over 64". In a
graph, the choice of the first plan is final. On other GPUs, it is FA2 or a kernel for Blackwell.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.backends import (
    PLAIN,
    SMALL_WINDOWED,
    capability_of,
    fa2_noise,
    fa2_paged_modules,
    prefill_modules,
    wrapper_backend,
)
from attnfuzz.kernels.gpu.wrappers.paged import FA2_PAGED, PagedForm, PagedWrapper
from attnfuzz.kernels.gpu.wrappers.paged_session import PagedWrapperSession
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import SPECULATIVE, Mask, Mode


class ChoosingWrapper(PagedWrapper):
    """A wrapper whose plans choose the kernel: failures say which."""

    def plan(
        self,
        lists: Mapping[str, torch.Tensor],
        layer: Mapping[str, Any],
        on_host: Mapping[str, torch.Tensor] | None = None,
        mask: Mapping[str, Any] | None = None,
    ) -> None:
        """See `Wrapper`."""
        super().plan(lists, layer, on_host, mask)
        # The choice of the last plan. The request, "auto", is in another attribute (_requested_backend, 0.7.4).
        chosen = getattr(self._wrapper, "_backend", "an unknown kernel")
        self._bench.launcher.reached_by(f"FlashInfer chose {chosen}")


class ChoosingSession(PagedWrapperSession):
    """A session on such wrappers."""

    wrapper_type = ChoosingWrapper


AUTO_PAGED: Final = PagedForm(**{**vars(FA2_PAGED), "backend": "auto"})


def _modules(bucket: Bucket) -> tuple[Module, ...]:
    return (*fa2_paged_modules(bucket), *prefill_modules(bucket, "fa3"))


def _backend() -> GpuBackend:
    """Make the backend. Rules are those of FA2, where strides of K and V are unsaid: FA3 may refuse them."""
    alone = wrapper_backend(
        "auto_paged",
        ChoosingSession,
        AUTO_PAGED,
        capability_of(Mode.of_kernels(), SPECULATIVE, PLAIN, SMALL_WINDOWED, masks=tuple(Mask)),
        # FA3 rounds no row sum.
        fa2_noise,
        rules.PAGED_PREFILL,
        lives.of_fa2_paged,
        _modules,
    )
    return replace(alone, archs=frozenset({Arch.HOPPER}))


AUTO_BACKENDS: Final = (_backend(),)
