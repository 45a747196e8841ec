"""A copy of keys and values out of the paged cache into rows without gaps."""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.cache_writes.new_tokens import Metadata, WriteMetadata
from attnfuzz.kernels.cache_writes.writer_session import Bounds, Contents, WriterSession, watched_rows, written_rows
from attnfuzz.kernels.interface.backend import Fill, WrittenTensor
from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.reference.case import Case, Mode, Step

_PRODUCT = 2.0**-23
"""Relative error of the product of a number and a scale in fp32: the scale is rounded, and the product."""


def starts(case: Case, step: Step) -> list[int]:
    """List the first gathered token of each request: 0, or the beginning of the last chunk of a chunked prefill."""
    if step.mode is not Mode.CHUNKED_PREFILL:
        return [0] * len(step.requests)
    share = case.chunk_capacity // len(step.requests)
    return [max(0, request.kv_len - 1) // share * share for request in step.requests]


class GatherMetadata(WriteMetadata):
    """The metadata of a gather: that of a write, and where the tokens of each row begin and go."""

    def of(self, step: Step) -> Metadata:
        """Make the metadata of a step."""
        metadata = super().of(step)
        lengths = metadata["seq_lens"].tolist()
        first = starts(self._case, step)
        first += [0] * (len(lengths) - len(first))
        counts = [length - start for length, start in zip(lengths, first, strict=True)]
        return metadata | {
            "seq_starts": torch.tensor(first, dtype=torch.int32),
            "out_indptr": torch.tensor(running_sum(counts), dtype=torch.int32),
        }


class GatherSession(WriterSession):
    """A gather of each request's tokens. The pool must not change."""

    stores = False
    planner_type = GatherMetadata

    _out: dict[str, tuple[torch.Tensor, torch.Tensor]]

    def _state(self, step: Step) -> Step:
        return step

    def _new(self, step: Step) -> dict[str, torch.Tensor]:
        del step
        return {}

    def _placed(self, step: Step, metadata: Metadata) -> dict[str, torch.Tensor]:
        rows, dtype = int(metadata["out_indptr"][-1]), self._case.geometry.dtype.torch_dtype
        out = {
            name: self._bench.memory.tensor(name, (rows, *pool.shape[2:]), dtype, fill=Fill.OUTPUT)
            for name, pool in zip(_OUTPUTS, self._pools().values(), strict=False)
        }
        return {**super()._placed(step, metadata), **out}

    def _watch(self, tensors: Contents) -> None:
        """Keep the outputs, and their bits before."""
        self._out = watched_rows(tensors, (name for name in _OUTPUTS if name in tensors))

    def _owners(self, step: Step) -> tuple[tuple[int, int], ...]:
        return tuple((index, token) for index, tokens in enumerate(self._spans(step)) for token in tokens)

    def _spans(self, step: Step) -> list[range]:
        """List the gathered tokens of each request."""
        firsts = starts(self._case, step)
        return [range(first, request.kv_len) for first, request in zip(firsts, step.requests, strict=True)]

    def _due(self, step: Step, before: Contents) -> Iterator[WrittenTensor]:
        yield from self._unchanged(before)
        tokens, scales = self._kv.tokens, self._case.scales
        for name, of_slot, scale in zip(_OUTPUTS, (tokens.keys, tokens.values), (scales.k, scales.v), strict=True):
            if name in self._out:
                spans = zip(step.requests, self._spans(step), strict=True)
                held = torch.cat([of_slot(each.slot, span.stop)[span.start :] for each, span in spans])
                yield written_rows(name, *self._out[name], self._read(held, scale))

    def _read(self, held: torch.Tensor, scale: float) -> Bounds:
        """Bound the numbers that a gather may give for those in the cache: copies, or products in fp32, rounded."""
        dtype = self._case.geometry.dtype.torch_dtype
        if held.dtype == dtype:
            return held, held
        due = held.double() * scale
        slack = due.abs() * _PRODUCT
        return (due - slack).float().to(dtype), (due + slack).float().to(dtype)


_OUTPUTS = ("key_out", "value_out")
