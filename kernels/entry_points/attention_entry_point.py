"""What all entry points of attention have in common: what they say of a call follows from what its kernel derives."""

from abc import ABC, abstractmethod

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties import judged, of_attention
from attnfuzz.kernels.entry_points.entry_point import Arguments, Breach, RequestSpan
from attnfuzz.kernels.ops_table import WorkspaceBytes


class AttentionEntryPoint(ABC):
    """Part of an EntryPoint."""

    @abstractmethod
    def _attention(self, arguments: Arguments) -> Attention:
        """A call as its kernel takes it. Raises WrongForm."""

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """A span for each request. Raises ValueError as `parameters` does."""
        return self._attention(arguments).spans

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """The preconditions that a call breaks."""
        return judged(lambda: of_attention(self._attention(arguments)))

    def workspace(self, arguments: Arguments) -> WorkspaceBytes | None:
        """What a call uses of its workspace, None if that is not known. Raises ValueError as `parameters` does."""
        return self._attention(arguments).workspace()
