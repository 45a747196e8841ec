"""Defects between a write into the KV cache and the attention after it: each is correct on its own."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS
from attnfuzz.kernels.cache_writes.then_attend import Arguments, StepSession, WriteThenAttend
from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.trtllm.backends import MHA, MLA
from attnfuzz.reference.case import Launch, Step
from attnfuzz.reference.mistake import Mistake

_HEADS, _LATENTS = "native:reshape_and_cache,trtllm_mha", "native:concat_and_cache,trtllm_mla"


@dataclass(frozen=True, kw_only=True)
class StepDefect(Defect):
    """A bug in a step that writes and then attends, planted in its `session`."""

    session: type[StepSession]

    def planted(self, name: str) -> WriteThenAttend:
        """Return the defective backend, named `name`."""
        writer, _, reader = self.backend.partition(",")
        writes = next(each for each in NATIVE_WRITERS if each.name == writer)
        return WriteThenAttend(writes, next(each for each in (MHA, MLA) if each.name == reader), self.session, name)


DEFECTS: Final[list[StepDefect]] = []

Session = type[StepSession]


def _add(
    bug_class: BugClass, name: str, source: str, *explained_by: Mistake, backend: str = _HEADS
) -> Callable[[Session], Session]:
    """Add the decorated session as a defect of `backend`. Its docstring is the title."""

    def decorate(session: Session) -> Session:
        title = inspect.cleandoc(session.__doc__ or "")
        DEFECTS.append(StepDefect(name, Layer.WRITE, bug_class, title, source, backend, explained_by, session=session))
        return session

    return decorate


class _WritesLate(StepSession):
    """Attention that reads the pool before the write."""

    def _write(self, step: Step) -> None:
        """Write nothing yet."""

    def _attended(self, index: int) -> Output:
        """Attend, and then write."""
        output = super()._attended(index)
        step = self._case.steps[index]
        if step.launch is Launch.EAGER and not self.attends_alone:
            super()._write(step)
        return output

    def record(self, write: Callable[[], None], attend: Callable[[], None]) -> None:
        """Record attention first."""
        attend()
        write()


@_add(
    BugClass.STALE_TAILS,
    "attends_before_the_write",
    "LMCache, local-inference-lab/rtx6kpro issue #47 (a load without order)",
)
class AttendsBeforeTheWrite(_WritesLate):
    """Attention reads the pool before the new tokens are written."""


@_add(
    BugClass.STALE_TAILS, "latents_read_before_the_write", "vLLM PR #43572 (a fused store of its own)", backend=_LATENTS
)
class ReadsLatentsBeforeTheWrite(_WritesLate):
    """Latent attention reads the pool before the new tokens are written."""


class _Refreshing(StepSession):
    """A step whose attention gets different metadata for the current step."""

    _running: Step | None = None

    def _attended(self, index: int) -> Output:
        self._running = self._case.steps[index]
        return super()._attended(index)

    def refreshed(self, arguments: Arguments) -> None:
        """Change the metadata of attention."""
        if self._running is not None:
            self._change(self._running, arguments)

    def _change(self, step: Step, arguments: Arguments) -> None:
        """Change the tensors of a step's attention."""
        raise NotImplementedError


@_add(
    BugClass.SHORT_KV,
    "lengths_of_before_the_write",
    "vLLM PR #54716 (slots from lengths instead of positions)",
    Mistake.KEYS_MISSING,
    Mistake.CAUSAL_LIMIT,
)
class AttendsWithLengthsOfBefore(_Refreshing):
    """Attention gets the lengths of decodes without their new tokens."""

    def _change(self, step: Step, arguments: Arguments) -> None:
        lengths = arguments["seq_lens"]
        for row, request in enumerate(step.requests):
            if request.q_len == 1 and request.kv_len > 1:
                lengths[row] = request.kv_len - 1


@_add(
    BugClass.TABLE_WIDTH_OR_TAIL,
    "page_table_updated_after_the_write",
    "TensorRT-LLM PR #15546 (tables staged in a reused buffer)",
)
class TakesThePagesOfBefore(_Refreshing):
    """A page that a request begins with its new tokens is still the dummy page in attention's page table."""

    def _change(self, step: Step, arguments: Arguments) -> None:
        size, table = self._kv.page_size, arguments["block_tables"]
        for row, request in enumerate(step.requests):
            before = -(-(request.kv_len - request.q_len) // size)
            table[row, before : -(-request.kv_len // size)] = DUMMY_PAGE


@_add(
    BugClass.SCALES,
    "scales_of_the_cache_not_attended_with",
    "tokenspeed PR #759 (attention without the scales of the store)",
    Mistake.LOGIT_SCALE,
    Mistake.GIVEN_SCALE,
)
class AttendsWithoutScaleOfKeys(StepSession):
    """The writer divides keys by their scale, but attention does not multiply by it."""

    def handed(self, arguments: Arguments) -> Arguments:
        """Return the arguments with the logits' scale as if keys had none."""
        return {**arguments, "bmm1_scale": arguments["bmm1_scale"] / self._case.scales.k}


@_add(BugClass.PAGE_LAYOUT, "read_in_the_other_layout", "vLLM PR #42740 (a layout that attention does not declare)")
class ReadsTheOtherLayout(StepSession):
    """Attention swaps the heads and slots of a page, but the writer does not."""

    def handed(self, arguments: Arguments) -> Arguments:
        """Return the arguments with pools at the strides of the other layout."""
        cache = arguments["kv_cache"]
        pools = [cache] if isinstance(cache, torch.Tensor) else list(cache)
        swapped = [pool.as_strided(pool.shape, self._strides(pool)) for pool in pools]
        return {**arguments, "kv_cache": swapped[0] if isinstance(cache, torch.Tensor) else tuple(swapped)}

    def _strides(self, pool: torch.Tensor) -> tuple[int, ...]:
        *outer, first, second, dim = pool.shape
        dense = (*pool.stride()[: len(outer)], second * dim, dim, 1)
        if pool.stride()[-3:] == dense[-3:]:
            return (*dense[:-3], dim, first * dim, 1)
        return dense
