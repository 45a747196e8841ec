"""The common part of all attention entry points: their answers follow from the facts about a call."""

from abc import ABC, abstractmethod

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties import judged, of_attention
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.meaning.entry_point import Arguments, Breach, RequestSpan


class AttentionEntryPoint(ABC):
    """Part of an EntryPoint. Only a `masked` one takes masks of requests."""

    masked = False

    @abstractmethod
    def _attention(self, arguments: Arguments) -> Attention:
        """State the facts about a call. Raises WrongForm."""

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """Return a span for each request. Raises ValueError as `parameters` does."""
        return self._attention(arguments).spans

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """Return the preconditions that a call breaks."""
        return judged(lambda: of_attention(self._attention(arguments)))

    def mask(self, arguments: Arguments, span: RequestSpan) -> torch.Tensor | None:
        """Return the keys that the queries of a request see besides a window: None, causal or as `causal` says."""
        return None

    def leaves_empty_rows(self, arguments: Arguments) -> bool:
        """Return whether a call leaves the rows of requests without keys unwritten: most do not."""
        return False

    def workspace(self, arguments: Arguments) -> WorkspaceBytes | None:
        """Return the workspace that a call uses, None if unknown. Raises ValueError as `parameters` does."""
        return self._attention(arguments).workspace()
